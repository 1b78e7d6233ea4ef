"""How many lite topics one partition may get, and all that a broker serves.

Invariants: belongs to one tenure of the partition. Counts those of which records are known, and
those of records that were appended and are not known yet, so that it holds whether or not a
consumer reads. Nothing is refused while the log's own ones are not known, nor a record of one that
is there. Who made a lite topic is not stored: of each user it is known how many it has added in
this tenure, and of what has expired since all users have lost alike.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenant_shares import (
    NOBODY,
    PLACES_PARTS,
    Held,
    Holder,
    TenantShares,
    add_count,
)
from headrace.errors import LiteTopicsFull
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.coordination.shares.lite_index import LiteIndex

BROKER_MAX: Final = TenantShares("lite topics", 1_000_000, "this broker", PLACES_PARTS)
"""One takes about 300 bytes. Users and tenants have shares."""


class LiteRoom:
    """See the module."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._known: LiteIndex | None = None
        """The one that has had all records of the log: another one, after a reload, has not."""
        self._coming: dict[str, None] = {}
        self._added: Counter[str] = Counter()
        """By users, in this tenure."""

    def add_to(self, held: Held, index: LiteIndex) -> None:
        """Add what there is, by whom it was made."""
        tenant, count = tenant_of(self._partition), len(index) + len(self._coming)
        add_count(held.by_tenant, tenant, count)
        added = max(self._added.total(), count, 1)
        for user, own in self._added.items():
            add_count(held.by_user, user, own * count // added)

    def check(
        self,
        index: LiteIndex,
        records: Sequence[tuple[int, str]],
        most: int,
        user: str,
        held: Callable[[], Held],
    ) -> None:
        """Raises LiteTopicsFull, naming those of some records (index in their batch, lite topic)
        of a user for which there is no room; `held`: what the broker has of all partitions."""
        if index is not self._known:
            return
        coming = self._coming
        new = dict.fromkeys(one for _, one in records if one not in index and one not in coming)
        room = max(most - len(index) - len(coming), 0)
        holder = Holder(tenant_of(self._partition), user)
        if len(new) > room:
            full = {*islice(new, room, None)}
            reason = (
                f"{self._partition} has as many lite topics as headrace.lite.topics.max={most} of"
                " the topic allows: send to one that is there, let others expire"
                " (headrace.lite.expiration.ms), or raise the limit"
            )
        elif new and (excess := BROKER_MAX.excess_of(holder, held(), len(new))):
            full = {*new}
            reason = (
                f"{excess}: send to one that is there, or let others expire"
                " (headrace.lite.expiration.ms)"
            )
        else:
            return
        refused = [(at, reason) for at, one in records if one in full]
        raise LiteTopicsFull(f"the batch is not stored: {reason}", record_errors=refused)

    def note(self, index: LiteIndex, records: Sequence[tuple[int, str]], user: str) -> None:
        """They were appended."""
        if index is self._known:
            before = len(self._coming)
            self._coming.update((one, None) for _, one in records if one not in index)
            if user != NOBODY:
                add_count(self._added, user, len(self._coming) - before)

    def learned(self, names: Iterable[str]) -> None:
        """Records of these lite topics are known."""
        if self._coming:
            for name in names:
                self._coming.pop(name, None)

    def caught_up(self, index: LiteIndex, log_end: int) -> None:
        """All records that can be read are known; `log_end`: the end of the log."""
        self._known = index
        if index.end >= log_end:
            self._coming.clear()  # what is left was discarded by a failed append
