"""Administers share groups: describes, moves and deletes their positions.

Invariants: knows no protocol. Runs on a group's coordinator, which knows its members; the owners of
the partitions, here or on other brokers (`SharePeerCalls`), know what the group has consumed. A
group with members is never moved or deleted. An interrupted deletion is completed by repeating the
request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.broker.coordinators.group_coordinator import consumer_group_error
from headrace.broker.coordinators.peer_calls import (
    START_UNKNOWN,
    Outcomes,
    ShareState,
    ShareStates,
)
from headrace.coordination.groups.commands import GroupListing
from headrace.errors import (
    BrokerUnreachable,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupUnknown,
    HeadraceError,
    NotCoordinator,
    NotOwner,
    RequestInvalid,
)
from headrace.runtime.loop_turns import charged_alike, gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.coordinators.peer_calls import SharePeerCalls
    from headrace.broker.shares.share_groups import ShareGroups
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.membership import ShareMembers
    from headrace.metadata.facts import BrokerFact, PartitionKey

log = logging.getLogger(__name__)

_T = TypeVar("_T")
SHARE = "share"
EMPTY, STABLE = "Empty", "Stable"
COORDINATOR_S: Final = 5.0
"""For which a request waits for a coordinator that moves or loads."""
COORDINATOR_RETRY_S: Final = 0.1


class SharePosition(NamedTuple):
    """A share group's position in one partition."""

    topic: str
    partition: int
    start_offset: int = START_UNKNOWN
    """The first unfinished record; START_UNKNOWN: the group has not begun here."""
    lag: int = -1
    """Unfinished records, -1: unknown."""
    leader_epoch: int = 0
    error: HeadraceError | None = None


class ShareGroupAdministration:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        groups: ShareGroups,
        partitions: SharePartitions,
        known: ConfiguredGroups,
        brokers: Callable[[], Sequence[BrokerFact]],
        peers: SharePeerCalls | None,
    ) -> None:
        """`peers`: None if this broker owns every partition."""
        self._readable = topics.readable
        self._ownership = ownership
        self._groups = groups
        self._partitions = partitions
        self._known = known
        self._brokers = brokers
        self.peers = peers

    def has(self, group_id: str) -> bool:
        """Whether the share group exists, as far as its coordinator knows."""
        return bool(self._known.share_topics(group_id)) or (
            group_id in self._groups.membership.groups
        )

    def begun(self) -> Sequence[str]:
        """The share groups that have begun on a topic, whichever broker coordinates them;
        sorted."""
        return self._known.share_groups()

    async def check_is_free(self, group_id: str, coordinator: BrokerFact) -> None:
        """Raise GroupUnknown if the id belongs to a consumer group that another broker coordinates.

        Also raises BrokerUnreachable, and the coordinator's error.
        """
        if self.peers is not None and await self.peers.has_consumer_group(coordinator, group_id):
            raise consumer_group_error(group_id)

    def listed(self) -> list[GroupListing]:
        """The share groups that this broker coordinates."""
        found: list[GroupListing] = []
        for group_id in sorted({*self._known.share_groups(), *self._groups.membership.groups}):
            try:
                members = self._groups.members_of(group_id).members
            except NotCoordinator:
                continue
            found.append(GroupListing(group_id, SHARE, STABLE if members else EMPTY, SHARE))
        return found

    def members(self, group_id: str) -> ShareMembers:
        """The group with its members. Raises GroupUnknown, NotCoordinator."""
        found = self._groups.members_of(group_id)
        self._require(group_id)
        return found

    def _require(self, group_id: str) -> None:
        if not self.has(group_id):
            raise GroupUnknown(f"share group {group_id[:100]!r} does not exist")

    def _require_empty(self, group_id: str) -> None:
        """Raises NotCoordinator, GroupNotEmpty, GroupUnknown."""
        self._groups.check_empty(group_id)
        self._require(group_id)

    # --- positions ---------------------------------------------------------------------------

    async def positions(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> Sequence[SharePosition]:
        """The group's positions in these partitions, or (None) wherever it has begun.

        Raises NotCoordinator, GroupUnknown.
        """
        self._groups.members_of(group_id)  # checks that this broker is the coordinator
        self._require(group_id)
        everywhere = partitions is None
        wanted = dict.fromkeys(self._begun(group_id) if partitions is None else partitions)
        keys, failed = self._keys(wanted)
        states = await self._states(group_id, keys)
        found = [_position(one, failed.get(one) or states[keys[one]]) for one in wanted]
        if everywhere:
            found = [one for one in found if one.start_offset >= 0 or one.error is not None]
        return found

    def _begun(self, group_id: str) -> list[tuple[str, int]]:
        topics = self._readable.consumed(group_id, self._known.share_topics(group_id))
        return [(topic.name, number) for topic in topics for number in range(len(topic.partitions))]

    def _keys(
        self, partitions: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], PartitionKey], dict[tuple[str, int], HeadraceError]]:
        keys: dict[tuple[str, int], PartitionKey] = {}
        failed: dict[tuple[str, int], HeadraceError] = {}
        for name, number in partitions:
            try:
                topic = self._readable.get(name)
                topic.check_partition(number)
                keys[name, number] = (topic.id, number)
            except HeadraceError as error:
                failed[name, number] = error
        return keys, failed

    async def _states(
        self, group_id: str, keys: Mapping[tuple[str, int], PartitionKey]
    ) -> ShareStates:
        names = {key: name for name, key in keys.items()}

        async def here(key: PartitionKey) -> ShareState:
            return await self.state_here(group_id, key)

        async def there(broker: BrokerFact, part: Sequence[PartitionKey]) -> ShareStates:
            assert self.peers is not None
            states, ends = await asyncio.gather(
                charged_alike(self.peers.share_states(broker, group_id, part)),
                charged_alike(self.peers.end_offsets(broker, [names[key] for key in part])),
            )
            return {
                key: state._replace(end_offset=ends.get(names[key], -1))
                if isinstance(state, ShareState)
                else state
                for key, state in states.items()
            }

        return await self._at_owners(list(names), here, there)

    async def state_here(self, group_id: str, key: PartitionKey) -> ShareState:
        """The group's position in a partition of this broker. Raises TopicIdUnknown, NotOwner,
        StorageUnavailable, CoordinatorLoading."""
        topic = self._readable.get_by_id(key[0])
        log = topic.require_log(key[1])
        described = await self._partitions.describe(topic, key[1], [group_id])
        if not described:
            return ShareState(START_UNKNOWN, 0, log.leader_epoch, log.high_watermark)
        one = described[0]
        return ShareState(one.start, one.finished_records, log.leader_epoch, log.high_watermark)

    # --- changes -----------------------------------------------------------------------------

    async def move(
        self, group_id: str, starts: Mapping[tuple[str, int], int], *, is_dry_run: bool = False
    ) -> Mapping[tuple[str, int], HeadraceError | None]:
        """Reset the group to these offsets; records in flight are dropped. Creates the group if it
        does not exist.

        Raises NotCoordinator, GroupNotEmpty, GroupIdInvalid.
        """
        with self._groups.kept_empty(group_id):
            return await self._move(group_id, starts, is_dry_run=is_dry_run)

    async def _move(
        self, group_id: str, starts: Mapping[tuple[str, int], int], *, is_dry_run: bool
    ) -> Mapping[tuple[str, int], HeadraceError | None]:
        keys, failed = self._keys(starts)
        for one, start in starts.items():
            if start < 0:
                failed[one] = RequestInvalid(
                    f"a group cannot start at offset {start}: give an offset of 0 or more"
                )
                keys.pop(one, None)
        outcomes: Outcomes = {}
        if not is_dry_run:
            by_key = {key: starts[one] for one, key in keys.items()}
            outcomes = await self._change(
                by_key,
                lambda key: self.move_here(group_id, key, by_key[key]),
                lambda peers, broker, part: peers.start_share_group(
                    broker, group_id, {key: by_key[key] for key in part}
                ),
            )
        return {one: failed[one] if one in failed else outcomes.get(keys[one]) for one in starts}

    async def move_here(self, group_id: str, key: PartitionKey, start: int) -> None:
        """Reset the group to `start` in a partition of this broker. Raises TopicIdUnknown,
        NotOwner, RequestInvalid, StorageUnavailable, CoordinatorLoading."""
        await self._partitions.move_start(self._readable.get_by_id(key[0]), key[1], group_id, start)

    async def delete_positions(
        self, group_id: str, topics: Sequence[str]
    ) -> Mapping[str, HeadraceError | None]:
        """Delete the group's positions in these topics.

        Raises NotCoordinator, GroupNotEmpty, GroupUnknown.
        """
        self._require_empty(group_id)
        results: dict[str, HeadraceError | None] = {}
        with self._groups.kept_empty(group_id):
            for name in dict.fromkeys(topics):
                try:
                    await self._delete_in(group_id, [self._readable.get(name)])
                    results[name] = None
                except HeadraceError as error:
                    results[name] = error
        return results

    async def delete(self, group_id: str, *, is_dry_run: bool = False) -> None:
        """Delete the group and its positions; its settings stay, as in Kafka.

        Raises NotCoordinator, GroupNotEmpty, GroupUnknown, and errors of the partitions' owners;
        the group then still exists, perhaps without a part of its positions, and repeating the
        request deletes it. Members cannot join it meanwhile.
        """
        self._require_empty(group_id)
        if is_dry_run:
            return
        with self._groups.kept_empty(group_id):
            # Also where it may not be read any more: the group is not to be there again later.
            known = [self._readable.find_by_id(one) for one in self._known.share_topics(group_id)]
            await self._delete_in(group_id, [topic for topic in known if topic is not None])
            self._groups.check_empty(group_id)  # this broker may have ceased to coordinate it
            await self._known.end(group_id)

    async def _delete_in(self, group_id: str, topics: Sequence[Topic]) -> None:
        keys = [(topic.id, number) for topic in topics for number in range(len(topic.partitions))]
        outcomes = await self._change(
            keys,
            lambda key: self.forget_here(group_id, key),
            lambda peers, broker, part: peers.forget_share_group(broker, group_id, part),
        )
        for error in outcomes.values():
            if error is not None:
                raise error
        await self._known.end(group_id, {topic.home.id for topic in topics})

    async def forget_here(self, group_id: str, key: PartitionKey) -> None:
        """Delete the group in a partition of this broker. Raises TopicIdUnknown, NotOwner,
        StorageUnavailable, CoordinatorLoading."""
        await self._partitions.remove_group(self._readable.get_by_id(key[0]), key[1], group_id)

    # --- owners ------------------------------------------------------------------------------

    async def _change(
        self,
        keys: Iterable[PartitionKey],
        here: Callable[[PartitionKey], Awaitable[None]],
        there: Callable[[SharePeerCalls, BrokerFact, Sequence[PartitionKey]], Awaitable[Outcomes]],
    ) -> Outcomes:
        """Have each owner make a change."""

        async def ask(broker: BrokerFact, part: Sequence[PartitionKey]) -> Outcomes:
            assert self.peers is not None
            return await there(self.peers, broker, part)

        return await self._at_owners(list(keys), here, ask)

    async def _at_owners(
        self,
        keys: Sequence[PartitionKey],
        here: Callable[[PartitionKey], Awaitable[_T]],
        there: Callable[
            [BrokerFact, Sequence[PartitionKey]],
            Awaitable[Mapping[PartitionKey, _T | HeadraceError]],
        ],
    ) -> dict[PartitionKey, _T | HeadraceError]:
        """The owners' answer for each partition; all brokers are asked concurrently."""
        answers: dict[PartitionKey, _T | HeadraceError] = {}
        elsewhere: dict[int, list[PartitionKey]] = {}
        for key in keys:
            topic = self._readable.find_by_id(key[0])
            if topic is None or self._ownership.is_mine(topic, key[1]):
                try:
                    answers[key] = await here(key)
                except HeadraceError as error:
                    answers[key] = error
            else:
                elsewhere.setdefault(self._ownership.leader(topic, key[1]).broker, []).append(key)
        brokers = {broker.id: broker for broker in self._brokers()}

        async def ask(broker_id: int, part: Sequence[PartitionKey]) -> None:
            try:
                if broker_id not in brokers:
                    raise NotOwner("no broker serves this partition at the moment: try again")
                answers.update(await there(brokers[broker_id], part))
            except HeadraceError as error:
                answers.update(dict.fromkeys(part, error))
            for key in part:
                answers.setdefault(key, BrokerUnreachable("the response lacks this partition"))

        await gather_charged(ask(one, part) for one, part in elsewhere.items())
        return answers


async def once_coordinated(group_id: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The result of `ask()`, which needs the group's coordinator, wherever it is: asked again while
    the coordinator moves, loads or has no successor yet.

    Raises BrokerUnreachable if that takes longer than COORDINATOR_S, and what else `ask` raises.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + COORDINATOR_S
    while True:
        try:
            return await ask()
        except (
            NotCoordinator,
            CoordinatorLoading,
            CoordinatorUnavailable,
            BrokerUnreachable,
        ) as error:
            if loop.time() >= until_s:
                raise BrokerUnreachable(
                    f"the coordinator of group {group_id[:100]!r} is moving to another broker or "
                    "reading its state, so the kind of the group is unknown: try again"
                ) from error
            log.info("waiting for the coordinator of group %s: %s", group_id[:100], error)
        await asyncio.sleep(COORDINATOR_RETRY_S)


def _position(one: tuple[str, int], state: ShareState | HeadraceError) -> SharePosition:
    if isinstance(state, HeadraceError):
        return SharePosition(*one, error=state)
    lag = -1
    if state.start_offset >= 0 and state.end_offset >= 0:
        lag = max(state.end_offset - state.start_offset - state.finished_records, 0)
    return SharePosition(*one, state.start_offset, lag, state.leader_epoch)
