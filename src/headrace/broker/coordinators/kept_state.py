"""Bounds of what clients keep in the memory of a broker, by kind, and the shares of users.

Invariants: what is known may go on, and only what is new is refused, so a flood stops nobody who is
there: known members may say as much as before, and more up to a reserve beyond the bound. Users
and tenants have shares of a bound (`tenant_shares`), so that no flood takes all of it. What is kept
is looked at again only when what was added since might exceed a share, at most once a second and
for a hundredth of the time, and when the bound has changed, so that a request costs a look-up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing, contextmanager
from sys import intern
from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenant_shares import (
    NO_HOLDER,
    NOBODY,
    PLACES_PARTS,
    Held,
    Holder,
    TenantShares,
)
from headrace.records.tenant_names import tenant_of
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator

NS_PER_S: Final = 1_000_000_000
SLICE: Final = 1_000
"""Ids, or members, that are counted without a pause."""
COUNTING_PART: Final = 100
"""A count is followed by a pause of so many times as long."""
ID_BYTES: Final = 512
"""An id counts as one, and as one more for each so many bytes that it takes: it may be as large as
all that is kept of ten others."""


class Room:
    """How much of one kind may be added, and by whom. `held`: as it was looked at last, and what
    was added since."""

    __slots__ = ("_look", "_looked_max", "_looking", "_most", "_next_look_ns", "_now_ns", "_what",
                 "held", "since")  # fmt: skip

    def __init__(
        self,
        what: str,
        most: Callable[[], int],
        look: Callable[[Room], Generator[None, None, None]],
        now_ns: Callable[[], int],
    ) -> None:
        """`what`: as errors call it. `look` finds what is held now, in steps of a millisecond;
        `most` is the bound at the time."""
        self._what = what
        self._most = most
        self._look = look
        self._now_ns = now_ns
        self.held = Held()
        self.since: Held | None = None
        """What was added since a count began that is under way."""
        self._looking = FairLock(1, Hold.LONG)
        self._looked_max = -1
        self._next_look_ns = 0

    async def take(self, holder: Holder = NO_HOLDER, amount: int = 1) -> str:
        """Why there is no room for so much more, in words; "": there is, and it is thought to be
        added."""
        excess = self._excess(holder, amount)
        if self._is_due(excess):
            async with self._looking:
                if self._is_due(excess):
                    await self._look_again()
            excess = self._excess(holder, amount)
        if not excess:
            self.add(holder, amount)
        return excess

    def add(self, holder: Holder, amount: int) -> None:
        """There is so much more; negative: less."""
        for held in (self.held, self.since):
            if held is not None:
                held.add(holder, amount)

    def _excess(self, holder: Holder, amount: int) -> str:
        shares = TenantShares(self._what, self._most(), "this broker", PLACES_PARTS)
        return shares.excess_of(holder, self.held, amount)

    def _is_due(self, excess: str) -> bool:
        is_changed = self._looked_max != self._most()
        return is_changed or (bool(excess) and self._now_ns() >= self._next_look_ns)

    async def _look_again(self) -> None:
        most, took_ns = self._most(), 0
        with closing(self._look(self)) as steps:  # it may be cancelled, and another one begin
            while True:
                begun_ns = self._now_ns()
                is_over = next(steps, steps) is steps
                took_ns += self._now_ns() - begun_ns
                if is_over:
                    break
                await asyncio.sleep(0)
        self._looked_max = most
        self._next_look_ns = self._now_ns() + max(NS_PER_S, COUNTING_PART * took_ns)


def counted_by(
    count: Callable[[Held], Iterator[None]],
) -> Callable[[Room], Generator[None, None, None]]:
    """For a Room whose content is counted anew. `count` adds all that is kept, in steps."""

    def look(room: Room) -> Generator[None, None, None]:
        held, room.since = Held(), Held()
        try:
            yield from count(held)
            held.add_all(room.since)
            room.held = held
        finally:
            room.since = None

    return look


def places(id_: str) -> int:
    """As how many an id counts."""
    return 1 + len(id_) * (1 if id_.isascii() else 4) // ID_BYTES


class Kept:
    """What clients keep of one kind, by id, and which user has made each that is new here.

    Of what was there when its partition was loaded, nobody: who made it is not stored. To know a
    maker takes some 60 bytes for each id. Ids that are removed count until the next sweep.
    """

    __slots__ = ("_ids", "_makers", "_making", "_room", "_seen")

    def __init__(
        self,
        what: str,
        most: Callable[[], int],
        ids: Callable[[], Iterable[Collection[str]]],
        now_ns: Callable[[], int],
    ) -> None:
        """`ids()`: those that are kept."""
        self._ids = ids
        self._makers: dict[str, str] = {}
        """Of each id that counts: the room holds these, no more and no less."""
        self._making: Counter[str] = Counter()
        """How many requests are under way that may make an id."""
        self._seen: set[str] | None = None
        """Ids that are kept, as the sweep has seen that is under way."""
        self._room = Room(what, most, lambda _room: self._sweep(), now_ns)

    @contextmanager
    def making(self, id_: str) -> Iterator[None]:
        """A request is under way that may make this id: its place stays taken meanwhile."""
        self._making[id_] += 1
        try:
            yield
        finally:
            self._making[id_] -= 1
            if not self._making[id_]:
                del self._making[id_]

    def knows(self, id_: str) -> bool:
        """Whether its place is counted."""
        return id_ in self._makers

    def maker(self, id_: str) -> str:
        """The user that has made it, if that is known."""
        return self._makers.get(id_, NOBODY)

    def note(self, id_: str, maker: str = NOBODY) -> None:
        """Who has made it; nobody: it was there before."""
        self.forget(id_)
        self._room.add(Holder(tenant_of(id_), maker), places(id_))
        self._set(id_, maker)

    def _set(self, id_: str, maker: str) -> None:
        self._makers[id_] = maker
        if self._seen is not None:
            self._seen.add(id_)

    async def take(self, id_: str, user: str) -> str:
        """Why there is no room for an id that is not there, in words; "": its place is taken.
        The caller is `making` it."""
        if self._making[id_] < 2:  # what is known of it is of one that was removed
            self.forget(id_)
        holder = Holder(tenant_of(id_), intern(user))
        if id_ in self._makers:
            return ""
        excess = await self._room.take(holder, places(id_))
        if not excess:
            self.forget(id_)  # another request may have taken its place meanwhile
            self._set(id_, holder.user)
        return excess

    def forget(self, id_: str) -> None:
        """It is removed."""
        maker = self._makers.pop(id_, None)
        if maker is not None:
            self._room.add(Holder(tenant_of(id_), maker), -places(id_))

    def _sweep(self) -> Generator[None, None, None]:
        seen = self._seen = set()
        try:
            for ids in list(self._ids()):
                known = list(ids)
                for at in range(0, len(known), SLICE):
                    for id_ in known[at : at + SLICE]:
                        if id_ in ids:
                            seen.add(id_)
                            if id_ not in self._makers:
                                self.note(id_)
                    yield
                yield
            known = list(self._makers)
            for at in range(0, len(known), SLICE):
                for id_ in known[at : at + SLICE]:
                    if id_ not in seen and id_ not in self._making:
                        self.forget(id_)
                yield
        finally:
            self._seen = None
