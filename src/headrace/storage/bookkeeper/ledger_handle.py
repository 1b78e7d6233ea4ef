"""A ledger being written: where each entry is sent, and when it may be acknowledged.

Invariants: a pure state machine. Commands come in (an append, a bookie's answer, the outcome of
a metadata update), effects go out (send, change the ensemble, acknowledge, close, fail); no
sockets, no ZooKeeper, no clock. `writing_ledger.py` and `recovering_ledger.py` execute them.

- Entry e is sent to the slots (e + i) mod E, i < W, of the ensemble. It is acknowledged when A of
  them have stored it and every entry before it is acknowledged.
- When a bookie fails, its slot is given to a spare one. First the metadata is updated (by
  compare-and-set: a new ensemble from the first unacknowledged entry on); then the old bookie's
  answers for these entries are discarded, and they are sent to the new one. Nothing is acknowledged
  in between: a reader with the old metadata must find every acknowledged entry. If the update is
  slow (`change_is_slow`), entries are acknowledged once an ack quorum of the remaining slots has
  stored them: those slots are the same in the old metadata and the new.
- Without a spare bookie, the slot stays lost, which is harmless while the others form ack quorums.
  It is given to a spare bookie as soon as there is one, or to the same bookie when it is back: as a
  new ensemble, so that a concurrent recovery is detected.
- If the others do not form ack quorums, the ledger stalls until a bookie is available, or until the
  caller gives up: no recovery could read its end meanwhile.
- Missing copies of acknowledged entries are counted (`copies_missing`).
- The answer "fenced", or metadata changed by another broker, ends it: another writer has taken over
  the ledger.
- In a recovery, ensembles change locally, and the metadata is updated at the end (`local_changes`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.wire import FENCED, OK, UNAUTHORIZED, code_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    ChooseSpare = Callable[[Sequence[str], int, AbstractSet[str]], str | None]
    """(ensemble, slot, bookies that it must not be) -> the bookie for that slot, if any."""


class Send(NamedTuple):
    """Send `entry` to the bookie in `slot`, which was seated there by the change `tenure`."""

    entry: int
    slot: int
    bookie: str
    tenure: int = 0


class ChangeEnsemble(NamedTuple):
    """Append `ensemble` to the ensembles of the OPEN ledger, by compare-and-set."""

    ensemble: Ensemble


class Acknowledge(NamedTuple):
    """All entries up to and including `entry` are durable."""

    entry: int


class Close(NamedTuple):
    """Record in the metadata that the ledger ends here."""

    last_entry: int
    length: int


class Fail(NamedTuple):
    """Refuse further appends: the outcome of unacknowledged ones is unknown."""

    is_fenced: bool
    reason: str


Effect = Send | ChangeEnsemble | Acknowledge | Close | Fail


class AddedEntry(NamedTuple):
    """The header fields of a new entry, and where it is sent."""

    entry: int
    confirmed: int
    length: int
    sends: list[Send]


def put_ensemble(
    before: Ensemble, wanted: Ensemble
) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The metadata update for a ChangeEnsemble, unless another writer has changed it."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is LedgerState.OPEN and metadata.last_ensemble == before:
            return metadata.with_ensemble(wanted)
        return None

    return change


def put_end(close: Close) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The metadata update for a Close, unless another writer has changed it."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is LedgerState.OPEN:
            return metadata.closed(close.last_entry, close.length)
        return None

    return change


class LedgerHandle:
    """See the module. Entries are added after `confirmed`."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        choose_spare: ChooseSpare,
        *,
        confirmed: int = -1,
        length: int = 0,
        local_changes: bool = False,
    ) -> None:
        self.quorum = metadata.quorum
        self.ensemble: list[str] = list(metadata.last_ensemble.bookies)
        self.first_entry = metadata.last_ensemble.first_entry
        """The first entry of the last ensemble."""
        self.confirmed = confirmed
        self.length = length
        """Payload bytes in all entries added."""
        self.failure: Fail | None = None
        self.new_ensembles: list[Ensemble] = []
        """Ensembles added since `metadata`."""
        self.lost: dict[int, int] = {}
        """Slots with a failed bookie that was not replaced -> `confirmed` at its failure."""
        self.change: dict[int, str] | None = None
        """Slot -> new bookie, while the metadata is being updated."""
        self.copies_missing = 0
        """Copies of acknowledged entries that were not stored, or are not known to be."""
        self._choose_spare = choose_spare
        self._local_changes = local_changes
        self._stored: deque[int] = deque()
        """For each entry after `confirmed`: a bit mask of the slots that have stored it."""
        self._tenures = [0] * self.quorum.ensemble
        """Slot -> the number of the change that seated its bookie."""
        self._changes = 0
        self._change_first = 0
        """The first entry of the ensemble in the pending change."""
        self._is_change_slow = False
        self._losses: dict[tuple[int, int], tuple[int, int]] = {}
        """(slot, tenure) of replaced bookies -> (`confirmed` at their failure, the first entry
        they were no longer to store)."""
        self._is_closing = False
        self._is_closed = False
        self._effects: list[Effect] = []

    @property
    def is_stalled(self) -> bool:
        """Whether nothing can be acknowledged until another bookie is available."""
        return bool(self.lost) and not self.quorum.can_acknowledge_without(self._left())

    @property
    def next_entry(self) -> int:
        """The id of the next entry."""
        return self.confirmed + 1 + len(self._stored)

    # --- commands ----------------------------------------------------------------------------

    def append(self, size: int) -> AddedEntry:
        """Add an entry with `size` bytes of payload."""
        assert self.failure is None, "a failed ledger accepts no entries"
        assert not self._is_closing, "a closing ledger accepts no entries"
        entry = self.next_entry
        self._stored.append(0)
        self.length += size
        sends = [
            Send(entry, slot, self.ensemble[slot], self._tenures[slot])
            for slot in self.quorum.slots(entry)
            if slot not in self.lost
        ]
        return AddedEntry(entry, self.confirmed, self.length, sends)

    def responded(self, send: Send, code: int) -> list[Effect]:
        """A bookie answered an add, or will not answer (code < 0)."""
        if self.failure is not None:
            return []
        slot = send.slot
        at = send.entry - self.confirmed - 1
        is_seated = send.tenure == self._tenures[slot]
        if code == OK:
            if at >= 0:
                if is_seated:  # otherwise it was resent since, to a new bookie or the same one
                    self._stored[at] |= 1 << slot
                    if at == 0:
                        self._advance()
            elif self.lost or self._losses:
                self._count_late(send, is_stored=True)
        elif code in {FENCED, UNAUTHORIZED}:
            if is_seated:
                reason = f"bookie {send.bookie} refused entry {send.entry}: it {code_text(code)}"
                self._fail(is_fenced=True, reason=reason)
        else:
            if at < 0:
                self._count_late(send, is_stored=False)
            if is_seated and slot not in self.lost:
                self.lost[slot] = self.confirmed
                self._replace()
        return self._drain()

    def _count_late(self, send: Send, *, is_stored: bool) -> None:
        """Handle an answer for an entry that is already acknowledged."""
        if send.tenure == self._tenures[send.slot]:
            lost_at, end = self.lost.get(send.slot, self.confirmed), send.entry + 1
            if self.change is not None and send.slot in self.change:
                end = self._change_first
        else:
            lost_at, end = self._losses[send.slot, send.tenure]
        if send.entry >= end:
            return  # another bookie was responsible for it
        is_counted = send.entry > lost_at  # as missing when it was acknowledged
        if is_stored and is_counted:
            self.copies_missing -= 1
        elif not is_stored and not is_counted:
            self.copies_missing += 1

    def ensemble_changed(self) -> list[Effect]:
        """The metadata now contains the requested ensemble."""
        if self.failure is None:
            self._apply_change()
            self._replace()
            self._advance()
        return self._drain()

    def change_failed(self, *, is_fenced: bool, reason: str) -> list[Effect]:
        """The metadata could not be updated: another writer did, or it is unavailable."""
        self._fail(is_fenced=is_fenced, reason=reason)
        return self._drain()

    def metadata_seen(self, metadata: LedgerMetadata) -> list[Effect]:
        """The metadata was changed, possibly by this handle itself."""
        if self.failure is None:
            if metadata.state is not LedgerState.OPEN:
                if not (self._is_closing and metadata.state is LedgerState.CLOSED):
                    self._fail(is_fenced=True, reason=f"its metadata says {metadata.state.name}")
            elif metadata.last_ensemble not in self._own_ensembles():
                self._fail(is_fenced=False, reason="another writer changed its ensemble")
        return self._drain()

    def spares_changed(self) -> list[Effect]:
        """There may be a bookie for a lost slot."""
        if self.failure is None and self.lost:
            self._replace()
        return self._drain()

    def change_is_slow(self) -> list[Effect]:
        """The metadata update is slow: acknowledge without the slots it concerns."""
        if self.change is not None and not self._is_change_slow:
            self._is_change_slow = True
            self._advance()
        return self._drain()

    def give_up(self) -> list[Effect]:
        """The stall time-out has expired: fail if still stalled."""
        self._fail_if_stalled()
        return self._drain()

    def close(self) -> list[Effect]:
        """Refuse further entries; close when all are acknowledged."""
        assert not self._is_closing, "a ledger is closed once"
        self._is_closing = True
        self._finish()
        return self._drain()

    # --- internal ----------------------------------------------------------------------------

    def _left(self) -> set[int]:
        """Lost slots that are not being reassigned."""
        return set(self.lost) if self.change is None else self.lost.keys() - self.change.keys()

    def _advance(self) -> None:
        if self.failure is not None:
            return
        counted = -1
        if self.change is not None:
            if not self._is_change_slow:
                return  # bookkeeper#1591: entries acknowledged now could be lost to a recovery
            for slot in self.change:
                counted &= ~(1 << slot)
        stored, ack = self._stored, self.quorum.ack
        before = self.confirmed
        while stored and (stored[0] & counted).bit_count() >= ack:
            bits = stored.popleft()
            self.confirmed += 1
            if self.lost:
                self._count_missing(bits & counted)
        if self.confirmed != before:
            self._effects.append(Acknowledge(self.confirmed))
        self._finish()

    def _count_missing(self, stored: int) -> None:
        """Count the copies of the entry just confirmed that lost slots lack."""
        for slot in self.lost:
            if not stored >> slot & 1 and self.quorum.holds(slot, self.confirmed):
                self.copies_missing += 1

    def _finish(self) -> None:
        idle = not self._stored and self.change is None
        if self._is_closing and idle and self.failure is None and not self._is_closed:
            self._is_closed = True
            self._effects.append(Close(self.confirmed, self.length))

    def _replace(self) -> None:
        """Reassign lost slots to spare bookies, or to their own, as far as available."""
        if self.change is not None or not self.lost or self._is_closed:
            return
        taken = set(self.ensemble)
        change: dict[int, str] = {}
        for slot in sorted(self.lost):
            own = self.ensemble[slot]
            ensemble = [change.get(at, bookie) for at, bookie in enumerate(self.ensemble)]
            excluded = taken if self._local_changes else taken - {own}
            spare = self._choose_spare(ensemble, slot, excluded)
            if spare is not None:
                change[slot] = spare
                taken.add(spare)
        if change:
            self.change = change
            self._change_first = self.confirmed + 1
            self._is_change_slow = False
        if self._local_changes:
            self._fail_if_stalled()  # restarting a recovery loses nothing
            if change and self.failure is None:
                self._apply_change()
        elif change:
            self._effects.append(ChangeEnsemble(self._changed_ensemble()))

    def _changed_ensemble(self) -> Ensemble:
        assert self.change is not None
        bookies = [self.change.get(slot, bookie) for slot, bookie in enumerate(self.ensemble)]
        return Ensemble(self._change_first, tuple(bookies))

    def _apply_change(self) -> None:
        change = self.change
        assert change is not None, "there is a pending change"
        ensemble = self._changed_ensemble()
        self.change = None
        self.ensemble = list(ensemble.bookies)
        self.first_entry = ensemble.first_entry
        if self.new_ensembles and self.new_ensembles[-1].first_entry == ensemble.first_entry:
            self.new_ensembles.pop()
        self.new_ensembles.append(ensemble)
        self._changes += 1
        for slot in change:
            self._losses[slot, self._tenures[slot]] = (self.lost.pop(slot), ensemble.first_entry)
            self._tenures[slot] = self._changes
        entry = self.confirmed + 1
        for at in range(len(self._stored)):
            for slot, bookie in change.items():
                if self.quorum.holds(slot, entry + at):
                    self._stored[at] &= ~(1 << slot)
                    self._effects.append(Send(entry + at, slot, bookie, self._changes))

    def _own_ensembles(self) -> list[Ensemble]:
        own = [Ensemble(self.first_entry, tuple(self.ensemble))]
        if self.change is not None:
            own.append(self._changed_ensemble())
        return own

    def _fail_if_stalled(self) -> None:
        if self.is_stalled:
            bookies = ", ".join(self.ensemble[slot] for slot in sorted(self._left()))
            reason = f"bookies {bookies} failed and there are no replacements"
            self._fail(is_fenced=False, reason=reason)

    def _fail(self, *, is_fenced: bool, reason: str) -> None:
        if self.failure is None:
            self.failure = Fail(is_fenced, reason)
            self._effects.append(self.failure)

    def _drain(self) -> list[Effect]:
        effects = self._effects
        if effects:
            self._effects = []
        return effects
