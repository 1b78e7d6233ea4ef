"""Which bookies a ledger is written to.

Rules of the room: pure. Knows names, racks, who is registered and who failed lately; time and
chance come in as arguments.

How it works: bookies that failed are in quarantine, longer each time until they have registered
anew: one that died stays registered until its session ends. In the ring of an ensemble each bookie
lies in another rack than its neighbours as far as the racks allow, so that the bookies of an entry
are spread. Where there are too few for an ensemble, a smaller one is made, down to the ack quorum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import StorageUnavailable
from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    Below = Callable[[int], int]
    """A number in [0, bound)."""

DEFAULT_RACK = "/default-rack"


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
        self._quarantine: dict[str, tuple[int, int]] = {}
        """Bookie -> (until, how long the next time), in ns."""

    def set_writable(self, bookies: Iterable[str]) -> None:
        """These are registered now. One that had gone and is back is trusted again."""
        now = dict.fromkeys(sorted(bookies))
        for bookie in now:
            if bookie not in self._writable:
                self._quarantine.pop(bookie, None)
        self._writable = now

    def set_read_only(self, bookies: Iterable[str]) -> None:
        """These are registered for reading alone."""
        self._read_only = set(bookies)

    def set_rack(self, bookie: str, rack: str) -> None:
        """What the bookie says of itself; the operator's word goes first."""
        self._racks.setdefault(bookie, rack)

    def failed(self, bookie: str, now_ns: int) -> None:
        """Put it in quarantine."""
        until, length = self._quarantine.get(bookie, (0, self._first_ns))
        if now_ns < until:
            return
        longer = min(length * 2, self._max_ns)
        self._quarantine[bookie] = (now_ns + length, longer)

    def is_quarantined(self, bookie: str, now_ns: int) -> bool:
        """Whether it failed lately."""
        return now_ns < self._quarantine.get(bookie, (0, 0))[0]

    def choose_ensemble(
        self, wanted: Quorum, now_ns: int, below: Below
    ) -> tuple[Quorum, tuple[str, ...]]:
        """(quorums, bookies) for a new ledger. Raises StorageUnavailable."""
        candidates = self._candidates(now_ns)
        if len(candidates) < wanted.ack:
            candidates = [name for name in self._writable if name not in self._read_only]
        size = min(wanted.ensemble, len(candidates))
        if size < wanted.ack:
            raise StorageUnavailable(
                f"{len(candidates)} bookies are there to write to, and {wanted.ack} must"
                " acknowledge every entry: start bookies, or lower the ack quorum"
            )
        quorum = Quorum(size, min(wanted.write, size), wanted.ack)
        ensemble: list[str | None] = [None] * size
        for slot in range(size):
            chosen = self._choose(candidates, ensemble, slot, below)
            ensemble[slot] = chosen
            candidates.remove(chosen)
        return quorum, tuple(bookie for bookie in ensemble if bookie is not None)

    def choose_spare(
        self,
        ensemble: Sequence[str],
        slot: int,
        excluded: AbstractSet[str],
        now_ns: int,
        below: Below,
    ) -> str | None:
        """A bookie for `slot`, None if there is none."""
        candidates = [name for name in self._candidates(now_ns) if name not in excluded]
        if not candidates:
            return None
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
