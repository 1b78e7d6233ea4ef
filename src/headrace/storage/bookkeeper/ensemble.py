"""Which bookies a ledger is written to.

Invariants: pure. Knows names, racks, who is registered and who failed lately; time and
chance come in as arguments.

How it works: a bookie that failed is in quarantine until it has answered again: one that died stays
registered until its session ends. The first time it leaves with its answer; one that fails again
soon stays longer each time, until it has registered anew. In the ring of an ensemble each bookie
lies in another rack than its neighbours as far as the racks allow, so that the bookies of an entry
are spread. Where there are too few for an ensemble, as many slots as every entry can do without go
to bookies that are away: those get their entries when they are back, and BookKeeper's AutoRecovery
sees what lacks copies. Beyond that a smaller ensemble is made, down to the ack quorum.
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
    """The bookies there are."""

    known: tuple[str, ...]
    """Registered now, or a part of the cluster in any case."""
    registered: tuple[str, ...]
    writable: tuple[str, ...]
    """They get new entries."""
    read_only: tuple[str, ...]
    quarantined: tuple[str, ...]
    """They are registered for writing, have failed and not answered since."""


class BookiePool:
    """The bookies there are."""

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
        """Bookie -> (until, how long the next time), in ns; whether it was its first failure."""
        self._silent: set[str] = set()
        """Bookies that have not answered since they failed."""

    def set_writable(self, bookies: Iterable[str]) -> None:
        """These are registered now. One that had gone and is back is trusted when it answers."""
        now = dict.fromkeys(sorted(bookies))
        for bookie in now:
            if bookie not in self._writable:
                self._quarantine.pop(bookie, None)
        self._writable = now

    def set_read_only(self, bookies: Iterable[str]) -> None:
        """These are registered for reading alone."""
        self._read_only = set(bookies)

    def set_known(self, bookies: Iterable[str]) -> None:
        """These belong to the cluster, whether they run now or not."""
        self._known = set(bookies)

    def set_rack(self, bookie: str, rack: str) -> None:
        """What the bookie says of itself; the operator's word goes first."""
        self._racks.setdefault(bookie, rack)

    def failed(self, bookie: str, now_ns: int) -> bool:
        """Put it in quarantine; whether it was not there."""
        until, length, _ = known = self._quarantine.get(bookie, self._unblemished)
        if now_ns < until:
            return False
        if now_ns - until > self._max_ns:
            length = self._first_ns  # its former failures are long ago
            known = self._unblemished
        longer = min(length * 2, self._max_ns)
        self._quarantine[bookie] = (now_ns + length, longer, known == self._unblemished)
        return True

    def await_answer(self, bookie: str) -> None:
        """Keep it in quarantine until `answered`, however long that takes."""
        self._silent.add(bookie)

    def answered(self, bookie: str, now_ns: int) -> int:
        """It answers again: for how many ns more it stays in quarantine.

        0 after a first failure; one that fails again soon serves its time.
        """
        self._silent.discard(bookie)
        until, _, is_first = self._quarantine.get(bookie, self._unblemished)
        if is_first:
            self._quarantine[bookie] = (now_ns, self._first_ns, False)
            return 0
        return max(until - now_ns, 0)

    def is_quarantined(self, bookie: str, now_ns: int) -> bool:
        """Whether it failed lately."""
        return bookie in self._silent or now_ns < self._quarantine.get(bookie, self._unblemished)[0]

    def is_registered(self, bookie: str) -> bool:
        """Whether it takes writes, by ZooKeeper's account."""
        return bookie in self._writable and bookie not in self._read_only

    def state(self, now_ns: int) -> PoolState:
        """The bookies by what can be done with them."""
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
                f"{len(candidates)} bookies are there to write to, and {wanted.ack} must"
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
        """The cluster's other bookies, those first that are registered: they may be back soon."""
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
        """A bookie for `slot`, None if there is none. The slot's own goes first, if it may."""
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
        """One of the candidates whose rack is rarest among the neighbours, by chance."""
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
