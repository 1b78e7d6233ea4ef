"""Chooses the bookies of a ledger.

Invariants: pure. Knows names, racks, registrations and recent failures; time and randomness are
passed in.

A bookie that failed is in quarantine until it has answered again, since a dead one stays registered
until its session ends. After the first failure, an answer ends the quarantine; a bookie that fails
again soon stays longer each time, until it registers anew. In the ring of an ensemble, adjacent
bookies are in different racks as far as possible, which spreads the bookies of an entry. With too
few bookies for an ensemble, unavailable ones get as many slots as every entry can do without: they
are filled in when they are back, and BookKeeper's AutoRecovery sees the missing copies. Beyond
that, the ensemble shrinks, down to the ack quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import StorageUnavailable
from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    Below = Callable[[int], int]
    """A number in [0, bound)."""

DEFAULT_RACK = "/default-rack"


class PoolState(NamedTuple):
    """The bookies of the cluster, by state."""

    known: tuple[str, ...]
    """Registered now, or belonging to the cluster."""
    registered: tuple[str, ...]
    writable: tuple[str, ...]
    """Available for new entries."""
    read_only: tuple[str, ...]
    quarantined: tuple[str, ...]
    """Registered as writable, but failed and not answering since."""


class BookiePool:
    """The bookies of the cluster, from which ensembles are chosen."""

    def __init__(
        self, racks: Mapping[str, str], *, quarantine_first_ms: int, quarantine_max_ms: int
    ) -> None:
        self._racks = dict(racks)
        self._first_ns = quarantine_first_ms * 1_000_000
        self._max_ns = quarantine_max_ms * 1_000_000
        self._writable: dict[str, None] = {}
        self._read_only: set[str] = set()
        self._known: set[str] = set()
        self._unblemished = (0, self._first_ns, True)
        self._quarantine: dict[str, tuple[int, int, bool]] = {}
        """Bookie -> (end, next duration), in ns; whether it was its first failure."""
        self._silent: set[str] = set()
        """Bookies that have not answered since their failure."""

    def set_writable(self, bookies: Iterable[str]) -> None:
        """Set the registered bookies. One that has returned is trusted once it answers."""
        now = dict.fromkeys(sorted(bookies))
        for bookie in now:
            if bookie not in self._writable:
                self._quarantine.pop(bookie, None)
        self._writable = now

    def set_read_only(self, bookies: Iterable[str]) -> None:
        """Set the bookies registered as read-only."""
        self._read_only = set(bookies)

    def set_known(self, bookies: Iterable[str]) -> None:
        """Set the bookies that belong to the cluster, running or not."""
        self._known = set(bookies)

    def set_rack(self, bookie: str, rack: str) -> None:
        """Set the rack that the bookie reports; the operator's setting takes precedence."""
        self._racks.setdefault(bookie, rack)

    def failed(self, bookie: str, now_ns: int) -> bool:
        """Quarantine a bookie; returns whether it was not quarantined before."""
        until, length, _ = known = self._quarantine.get(bookie, self._unblemished)
        if now_ns < until:
            return False
        if now_ns - until > self._max_ns:
            length = self._first_ns  # its previous failures are too old to matter
            known = self._unblemished
        longer = min(length * 2, self._max_ns)
        self._quarantine[bookie] = (now_ns + length, longer, known == self._unblemished)
        return True

    def await_answer(self, bookie: str) -> None:
        """Keep it in quarantine until `answered`, however long that takes."""
        self._silent.add(bookie)

    def answered(self, bookie: str, now_ns: int) -> int:
        """It answers again: returns for how many more ns it stays in quarantine.

        0 after a first failure; after repeated failures, the remaining time.
        """
        self._silent.discard(bookie)
        until, _, is_first = self._quarantine.get(bookie, self._unblemished)
        if is_first:
            self._quarantine[bookie] = (now_ns, self._first_ns, False)
            return 0
        return max(until - now_ns, 0)

    def is_quarantined(self, bookie: str, now_ns: int) -> bool:
        """Whether it failed recently."""
        return bookie in self._silent or now_ns < self._quarantine.get(bookie, self._unblemished)[0]

    def is_registered(self, bookie: str) -> bool:
        """Whether it is registered as writable in ZooKeeper."""
        return bookie in self._writable and bookie not in self._read_only

    def state(self, now_ns: int) -> PoolState:
        """The bookies by state."""
        registered = self._writable.keys() | self._read_only
        return PoolState(
            tuple(sorted(registered | self._known)),
            tuple(sorted(registered)),
            tuple(self._candidates(now_ns)),
            tuple(sorted(self._read_only)),
            tuple(
                bookie
                for bookie in self._writable
                if bookie not in self._read_only and self.is_quarantined(bookie, now_ns)
            ),
        )

    def choose_ensemble(
        self, wanted: Quorum, now_ns: int, below: Below
    ) -> tuple[Quorum, tuple[str, ...]]:
        """(quorums, bookies) for a new ledger. Raises StorageUnavailable."""
        candidates = self._candidates(now_ns)
        if len(candidates) < wanted.ack:
            candidates = [name for name in self._writable if name not in self._read_only]
        away: list[str] = []
        if len(candidates) >= wanted.ack:
            wanting = min(wanted.ensemble - len(candidates), wanted.write - wanted.ack)
            away = self._away(set(candidates))[: max(wanting, 0)]
        size = min(wanted.ensemble, len(candidates) + len(away))
        if size < wanted.ack:
            raise StorageUnavailable(
                f"{len(candidates)} bookies are available for writing, and {wanted.ack} must"
                " acknowledge every entry: start bookies, or lower the ack quorum"
            )
        quorum = Quorum(size, min(wanted.write, size), wanted.ack)
        ensemble: list[str | None] = [None] * size
        for slot in range(size):
            chosen = self._choose(candidates or away, ensemble, slot, below)
            ensemble[slot] = chosen
            (candidates or away).remove(chosen)
        return quorum, tuple(bookie for bookie in ensemble if bookie is not None)

    def _away(self, usable: AbstractSet[str]) -> list[str]:
        """Unavailable bookies, with registered ones first, as they may return soon."""
        others = (self._known | self._writable.keys()) - usable - self._read_only
        return sorted(others, key=lambda name: (name not in self._writable, name))

    def choose_spare(
        self,
        ensemble: Sequence[str],
        slot: int,
        excluded: AbstractSet[str],
        now_ns: int,
        below: Below,
    ) -> str | None:
        """A bookie for `slot`; None if there is none. The current one is preferred, if allowed."""
        candidates = [name for name in self._candidates(now_ns) if name not in excluded]
        if not candidates:
            return None
        if ensemble[slot] in candidates:
            return ensemble[slot]
        others = [None if at == slot else bookie for at, bookie in enumerate(ensemble)]
        return self._choose(candidates, others, slot, below)

    def _candidates(self, now_ns: int) -> list[str]:
        return [
            bookie
            for bookie in self._writable
            if bookie not in self._read_only and not self.is_quarantined(bookie, now_ns)
        ]

    def _choose(
        self, candidates: list[str], ensemble: Sequence[str | None], slot: int, below: Below
    ) -> str:
        """A random candidate among those with the least common rack near the slot."""
        size = len(ensemble)
        racks = [self._rack(bookie) for bookie in ensemble if bookie is not None]
        beside = [ensemble[slot - 1], ensemble[(slot + 1) % size]]
        near = {self._rack(bookie) for bookie in beside if bookie is not None}
        costs = {
            bookie: (self._rack(bookie) in near, racks.count(self._rack(bookie)))
            for bookie in candidates
        }
        least = min(costs.values())
        best = [bookie for bookie in candidates if costs[bookie] == least]
        return best[below(len(best))]

    def _rack(self, bookie: str) -> str:
        return self._racks.get(bookie, DEFAULT_RACK)
