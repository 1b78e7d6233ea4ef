"""Lists all groups of a cluster, whichever broker coordinates them.

Invariants: knows no protocol, changes nothing. A broker lists the groups that it coordinates and
asks the others for theirs. The metadata store lists share groups, so a share group whose
coordinator cannot be reached is listed as well, in state `Unknown`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.share_group_administration import SHARE
from headrace.coordination.groups.commands import GroupListing
from headrace.errors import HeadraceError
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.group_administration import GroupAdministration
    from headrace.broker.services.share_group_administration import ShareGroupAdministration
    from headrace.metadata.facts import BrokerFact

UNKNOWN: Final = "Unknown"


class ListedGroups(NamedTuple):
    """Groups by id, and the brokers whose groups are missing."""

    groups: list[GroupListing]
    failed: dict[int, HeadraceError]


class GroupListings:
    """See the module."""

    def __init__(
        self,
        groups: GroupAdministration,
        shares: ShareGroupAdministration,
        brokers: Callable[[], Sequence[BrokerFact]],
        broker_id: int,
    ) -> None:
        self._groups = groups
        self._shares = shares
        self._brokers = brokers
        self._broker_id = broker_id

    async def list(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> ListedGroups:
        """The groups of all brokers; without filters, all of them. Raises this broker's error if it
        cannot list its own."""
        own = await self._groups.list_groups(states, types)
        if own.error is not None:
            raise own.error
        found = {one.group_id: one for one in own.groups}
        failed: dict[int, HeadraceError] = {}
        peers = self._shares.peers

        async def ask(broker: BrokerFact) -> None:
            assert peers is not None
            try:
                for one in await peers.list_groups(broker, states, types):
                    found.setdefault(one.group_id, one)
            except HeadraceError as error:
                failed[broker.id] = error

        if peers is not None:
            others = [broker for broker in self._brokers() if broker.id != self._broker_id]
            await gather_charged(map(ask, others))
        if _lets(types, SHARE) and _lets(states, UNKNOWN):
            for group_id in self._shares.begun():
                unknown = GroupListing(group_id, SHARE, UNKNOWN, SHARE)
                found.setdefault(group_id, unknown)
        return ListedGroups(sorted(found.values()), dict(sorted(failed.items())))


def _lets(wanted: Sequence[str], word: str) -> bool:
    return not wanted or word.lower() in {one.lower() for one in wanted}
