"""The share groups that this broker coordinates, and the sessions of their members on it.

Invariants: the coordinator of a share group is the owner of the group's partition of
`__consumer_offsets`, as for any group; it knows members only. The owners of the data partitions
know what they consume (`share_partitions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinators.group_config import group_value
from headrace.broker.coordinators.groups_configured import GROUP_ID_LENGTH_MAX
from headrace.broker.coordinators.kept_groups import Source
from headrace.broker.coordinators.kept_state import SLICE
from headrace.broker.security.tenant_shares import NOBODY, Holder
from headrace.broker.shares.share_sessions import ShareSessions
from headrace.coordination.kit.topic_view import TopicShape
from headrace.coordination.shares.config import EXCLUSIVE
from headrace.coordination.shares.membership import (
    GROUP_SIZE_MAX,
    ShareHeartbeat,
    ShareHeartbeatReply,
    ShareMembers,
    ShareMembership,
    check_lengths,
    kept_of,
    said,
)
from headrace.errors import (
    CoordinatorLoading,
    GroupIdInvalid,
    GroupNotEmpty,
    GroupUnknown,
    HeadraceError,
)
from headrace.records.tenant_names import name_in, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.coordinators.kept_groups import KeptGroups
    from headrace.broker.security.tenant_shares import Held
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.shares.share_sessions import PartitionKey, ShareSession
    from headrace.broker.topics.topics import Topics
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 1.0


class HeartbeatAnswer(NamedTuple):
    """The response to a member's heartbeat."""

    reply: ShareHeartbeatReply
    interval_ms: int


class ShareGroups:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        partitions: SharePartitions,
        configs: ConfiguredGroups,
        check_coordinator: Callable[[str], None],
        clock: Clock,
        tasks: Tasks,
        kept: KeptGroups | None = None,
    ) -> None:
        """`check_coordinator(group_id)` raises NotCoordinator if another broker coordinates the
        group. `kept`: bounds what is kept; None: nothing does."""
        self.membership = ShareMembership()
        self.sessions = ShareSessions()
        self._topics = topics
        self._partitions = partitions
        self._configs = configs
        self._check_coordinator = check_coordinator
        self._clock = clock
        self._tasks = tasks
        self._expiry: asyncio.Task[None] | None = None
        self._kept_empty: Counter[str] = Counter()
        self._kept = kept
        if kept is not None:
            kept.add(Source(lambda: [self.membership.groups], self._count_members))

    # --- members -----------------------------------------------------------------------------

    async def heartbeat(self, beat: ShareHeartbeat, user: str = NOBODY) -> HeartbeatAnswer:
        """ShareGroupHeartbeat. A new group counts for `user`. Raises what
        `ShareMembership.heartbeat` raises, NotCoordinator, CoordinatorLoading while the group is
        kept empty, MetadataUnavailable if its settings cannot be decoded, and PolicyViolation or
        GroupFull if there is no room for it."""
        check_lengths(beat)
        if not 0 < len(name_in(beat.group_id)) <= GROUP_ID_LENGTH_MAX:
            raise GroupIdInvalid(
                f"a share group id must have 1 to {GROUP_ID_LENGTH_MAX} characters"
            )
        self._check_coordinator(beat.group_id)
        if self._kept is None or not beat.subscribed:
            return self._heartbeat(beat)
        is_there = beat.group_id in self.membership.groups
        with self._kept.making(beat.group_id, is_there=is_there):
            await self._kept.check_group(beat.group_id, user, is_there=is_there)
            await self._check_member(self._kept, beat, user)
            return self._heartbeat(beat)

    async def _check_member(self, kept: KeptGroups, beat: ShareHeartbeat, user: str) -> None:
        """Raise GroupFull if there is no room for what a member adds."""
        group = self.membership.groups.get(beat.group_id)
        members = {} if group is None else group.members
        member = members.get(beat.member_id)
        if member is not None and set(beat.subscribed or ()) == set(member.subscribed):
            return
        size = said(beat, len(members), self._shapes())
        before = 0 if member is None else kept_of(member)
        await kept.check_member(beat.group_id, user, size, lambda: before)

    def _count_members(self, maker: Callable[[str], str], held: Held) -> Iterator[None]:
        for count, (group_id, group) in enumerate(list(self.membership.groups.items())):
            held.add(Holder(tenant_of(group_id), maker(group_id)), group.size_bytes)
            if count % SLICE == 0:
                yield

    def _heartbeat(self, beat: ShareHeartbeat) -> HeartbeatAnswer:
        if beat.group_id in self._kept_empty:
            raise CoordinatorLoading(
                f"positions of share group {beat.group_id!r} are being changed: try again"
            )
        self._configs.check_readable(beat.group_id)
        overrides = self._configs.overrides(beat.group_id)
        session_ms = int(group_value(overrides, "share.session.timeout.ms"))
        interval_ms = int(group_value(overrides, "share.heartbeat.interval.ms"))
        is_exclusive = self._configs.share_config(beat.group_id).subscription == EXCLUSIVE
        reply = self.membership.heartbeat(
            beat,
            self._shapes(),
            session_ms,
            self._clock.now_ns() // 1_000_000,
            1 if is_exclusive else GROUP_SIZE_MAX,
        )
        if self._expiry is None:
            self._expiry = self._tasks.start(self._expire_always(), "members of share groups")
        return HeartbeatAnswer(reply, interval_ms)

    def exists(self, group_id: str) -> bool:
        """Whether the share group exists: it has members, or has begun on a topic."""
        return group_id in self.membership.groups or bool(self._configs.share_topics(group_id))

    def members_of(self, group_id: str) -> ShareMembers:
        """The group's members; none if it is inactive. Raises NotCoordinator."""
        self._check_coordinator(group_id)
        return self.membership.groups.get(group_id) or ShareMembers(group_id)

    def check_empty(self, group_id: str) -> None:
        """Raises GroupNotEmpty, NotCoordinator."""
        if self.members_of(group_id).members:
            raise GroupNotEmpty(f"share group {group_id!r} has members: stop its consumers first")

    @contextmanager
    def kept_empty(self, group_id: str) -> Iterator[None]:
        """Members cannot join the group meanwhile, whose positions may then be changed.

        Raises GroupNotEmpty, NotCoordinator.
        """
        self.check_empty(group_id)
        self._kept_empty[group_id] += 1
        try:
            yield
        finally:
            self._kept_empty[group_id] -= 1
            self._kept_empty += Counter()  # forgets what is 0

    async def _expire_always(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            try:
                self._expire()
            except Exception:  # without this task no member's session would ever expire again
                log.exception("internal error while expiring members of share groups: retrying")

    def _expire(self) -> None:
        now_ms = self._clock.now_ns() // 1_000_000
        for group_id, member_id in self.membership.expire(self._shapes(), now_ms):
            log.info("the session of member %s of share group %s has expired", member_id, group_id)
            session = self.sessions.close(group_id, member_id)
            if session is not None:  # a task each: a partition that does not answer delays no other
                self._tasks.spawn(self.release(session), f"release {member_id}")

    def _shapes(self) -> Mapping[str, TopicShape]:
        return _Shapes(self._topics)

    # --- sessions ----------------------------------------------------------------------------

    def disconnected(self, connection: object) -> None:
        """A connection has ended: release what its members held here."""
        for session in self.sessions.disconnected(connection):
            self._tasks.spawn(self.release(session), f"release {session.member_id}")

    async def release(self, session: ShareSession) -> None:
        """Make the records that the session's member holds here available again."""
        await self.release_partitions(session, list(session.partitions))

    async def release_partitions(
        self, session: ShareSession, partitions: Iterable[PartitionKey]
    ) -> None:
        """The same, for these partitions."""
        for topic_id, number in partitions:
            topic = self._topics.readable.find_by_id(topic_id)
            if topic is None or number >= len(topic.partitions):
                continue
            try:
                await self._partitions.release(topic, number, session.group_id, session.member_id)
            except GroupUnknown:
                continue  # nothing was ever fetched there
            except HeadraceError as error:  # its locks expire by themselves
                log.info(
                    "cannot release the records of member %s yet: %s", session.member_id, error
                )


class _Shapes(dict[str, TopicShape]):
    """Topics by name, looked up on demand."""

    def __init__(self, topics: Topics) -> None:
        super().__init__()
        self._topics = topics

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._topics.readable.find(name) is not None

    def __getitem__(self, name: str) -> TopicShape:
        topic = self._topics.readable.get(name)
        return TopicShape(topic.id, len(topic.partitions))
