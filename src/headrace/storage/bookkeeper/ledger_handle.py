"""A ledger that is being written: which entry goes where, and when it may be acknowledged.

Invariants: a pure machine. Commands come in (an append, a bookie's answer, the outcome of
a change of metadata), effects go out (send, change the ensemble, acknowledge, close, fail); no
sockets, no ZooKeeper, no clock. `writing_ledger.py` and `recovering_ledger.py` carry them out.

How it works:
- Entry e goes to the slots (e + i) mod E, i < W, of the ensemble. It is acknowledged when A of them
  have stored it and every entry before it is acknowledged.
- A slot whose bookie failed is given to a spare one: first the metadata say so (by compare-and-set:
  a new ensemble from the first entry that is not acknowledged), then what the old bookie had said
  of the entries since is forgotten and they are sent to the new one. Nothing is acknowledged in
  between: a reader who sees the old metadata must find every acknowledged entry. Where the metadata
  take long (`change_is_slow`), entries are acknowledged that an ack quorum of the slots that stay
  has stored: those are the same under the old metadata and the new.
- Where there is no spare bookie, the slot stays lost, and that does no harm while the others make
  up ack quorums. It is given to a spare bookie as soon as there is one, or to the same bookie when
  that has come back: a new ensemble, so that a recovery which has begun meanwhile is noticed.
- Where the others do not make up ack quorums, it stalls until a bookie comes, or until the caller
  gives up: no recovery could read its end meanwhile.
- Copies that an acknowledged entry lacks are counted (`copies_missing`).
- A bookie that says "fenced", and metadata that somebody else changed, end it: another writer has
  taken the ledger over.
- In a recovery the ensembles change here alone, and the metadata at the end (`local_changes`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.wire import FENCED, OK, UNAUTHORIZED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    ChooseSpare = Callable[[Sequence[str], int, AbstractSet[str]], str | None]
    """(ensemble, slot, bookies that it must not be) -> the bookie for that slot, if any."""


class Send(NamedTuple):
    """Send `entry` to the bookie in `slot`, which has been there since the change `tenure`."""

    entry: int
    slot: int
    bookie: str
    tenure: int = 0


class ChangeEnsemble(NamedTuple):
    """Put `ensemble` behind the ensembles of the OPEN ledger, by compare-and-set."""

    ensemble: Ensemble


class Acknowledge(NamedTuple):
    """All entries up to and including `entry` are safe."""

    entry: int


class Close(NamedTuple):
    """Write down that the ledger ends here."""

    last_entry: int
    length: int


class Fail(NamedTuple):
    """Take no more: what is not acknowledged is in doubt."""

    is_fenced: bool
    reason: str


Effect = Send | ChangeEnsemble | Acknowledge | Close | Fail


class Added(NamedTuple):
    """What goes into the entry that an append makes, and where it is sent."""

    entry: int
    confirmed: int
    length: int
    sends: list[Send]


def put_ensemble(
    before: Ensemble, wanted: Ensemble
) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The change of metadata that a ChangeEnsemble asks for, unless another has changed them."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is LedgerState.OPEN and metadata.last_ensemble == before:
            return metadata.with_ensemble(wanted)
        return None

    return change


def put_end(close: Close) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The change of metadata that a Close asks for, unless another has changed them."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is LedgerState.OPEN:
            return metadata.closed(close.last_entry, close.length)
        return None

    return change


class LedgerHandle:
    """See the module. Entries are added from `confirmed` + 1 on."""

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
        """Where the last ensemble begins."""
        self.confirmed = confirmed
        self.length = length
        """Bytes of payload in all entries that were added."""
        self.failure: Fail | None = None
        self.new_ensembles: list[Ensemble] = []
        """What changed since `metadata`."""
        self.lost: dict[int, int] = {}
        """Slots whose bookie failed and was not replaced; what was confirmed when it failed."""
        self.change: dict[int, str] | None = None
        """The bookies that take over slots, while the metadata are being changed."""
        self.copies_missing = 0
        """Copies of acknowledged entries that were not stored, or not known to be."""
        self._choose_spare = choose_spare
        self._local_changes = local_changes
        self._stored: deque[int] = deque()
        """For each entry behind `confirmed`: a bit for every slot that has stored it."""
        self._tenures = [0] * self.quorum.ensemble
        """For each slot the number of the change that gave it to its bookie."""
        self._changes = 0
        self._change_first = 0
        """The first entry of the ensemble that the change under way makes."""
        self._is_change_slow = False
        self._losses: dict[tuple[int, int], tuple[int, int]] = {}
        """(slot, tenure) of bookies that failed and whose slot was given away since: what was
        confirmed when it failed, and the first entry that it was not to store any more."""
        self._is_closing = False
        self._is_closed = False
        self._effects: list[Effect] = []

    @property
    def is_stalled(self) -> bool:
        """Whether nothing can be acknowledged until a bookie comes."""
        return bool(self.lost) and not self.quorum.can_acknowledge_without(self._left())

    @property
    def next_entry(self) -> int:
        """The id of the next entry."""
        return self.confirmed + 1 + len(self._stored)

    # --- commands ----------------------------------------------------------------------------

    def append(self, size: int) -> Added:
        """Add an entry with `size` bytes of payload."""
        assert self.failure is None, "a ledger that failed takes no more"
        assert not self._is_closing, "a ledger that is being closed takes no more"
        entry = self.next_entry
        self._stored.append(0)
        self.length += size
        sends = [
            Send(entry, slot, self.ensemble[slot], self._tenures[slot])
            for slot in self.quorum.slots(entry)
            if slot not in self.lost
        ]
        return Added(entry, self.confirmed, self.length, sends)

    def responded(self, send: Send, code: int) -> list[Effect]:
        """A bookie answered an add, or never will (code < 0)."""
        if self.failure is not None:
            return []
        slot = send.slot
        at = send.entry - self.confirmed - 1
        is_seated = send.tenure == self._tenures[slot]
        if code == OK:
            if at >= 0:
                if is_seated:  # else it was sent to its successor, or to the same one anew
                    self._stored[at] |= 1 << slot
                    if at == 0:
                        self._advance()
            elif self.lost or self._losses:
                self._count_late(send, is_stored=True)
        elif code in {FENCED, UNAUTHORIZED}:
            if is_seated:
                reason = f"bookie {send.bookie} refused entry {send.entry} ({code})"
                self._fail(is_fenced=True, reason=reason)
        else:
            if at < 0:
                self._count_late(send, is_stored=False)
            if is_seated and slot not in self.lost:
                self.lost[slot] = self.confirmed
                self._replace()
        return self._drain()

    def _count_late(self, send: Send, *, is_stored: bool) -> None:
        """An answer for an entry that was acknowledged before."""
        if send.tenure == self._tenures[send.slot]:
            lost_at, end = self.lost.get(send.slot, self.confirmed), send.entry + 1
            if self.change is not None and send.slot in self.change:
                end = self._change_first
        else:
            lost_at, end = self._losses[send.slot, send.tenure]
        if send.entry >= end:
            return  # another bookie was to store it
        is_counted = send.entry > lost_at  # when it was acknowledged
        if is_stored and is_counted:
            self.copies_missing -= 1
        elif not is_stored and not is_counted:
            self.copies_missing += 1

    def ensemble_changed(self) -> list[Effect]:
        """The metadata name the ensemble that was asked for."""
        if self.failure is None:
            self._apply_change()
            self._replace()
            self._advance()
        return self._drain()

    def change_failed(self, *, is_fenced: bool, reason: str) -> list[Effect]:
        """The metadata could not be changed, or closed: somebody else did, or they are away."""
        self._fail(is_fenced=is_fenced, reason=reason)
        return self._drain()

    def metadata_seen(self, metadata: LedgerMetadata) -> list[Effect]:
        """Somebody changed the metadata, perhaps this handle itself."""
        if self.failure is None:
            if metadata.state is not LedgerState.OPEN:
                if not (self._is_closing and metadata.state is LedgerState.CLOSED):
                    self._fail(is_fenced=True, reason=f"its metadata say {metadata.state.name}")
            elif metadata.last_ensemble not in self._own_ensembles():
                self._fail(is_fenced=False, reason="somebody else changed its ensemble")
        return self._drain()

    def spares_changed(self) -> list[Effect]:
        """There may be a bookie for a slot that was lost."""
        if self.failure is None and self.lost:
            self._replace()
        return self._drain()

    def change_is_slow(self) -> list[Effect]:
        """The change of metadata takes long: acknowledge without the slots that it is about."""
        if self.change is not None and not self._is_change_slow:
            self._is_change_slow = True
            self._advance()
        return self._drain()

    def give_up(self) -> list[Effect]:
        """It has been stalled for long: fail, unless it is not stalled any more."""
        self._fail_if_stalled()
        return self._drain()

    def close(self) -> list[Effect]:
        """Take no more entries; close when all are acknowledged."""
        assert not self._is_closing, "a ledger is closed once"
        self._is_closing = True
        self._finish()
        return self._drain()

    # --- inside ------------------------------------------------------------------------------

    def _left(self) -> set[int]:
        """The lost slots that are not being given to other bookies."""
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
        """Of the entry just confirmed: nothing more is sent to slots that are lost."""
        for slot in self.lost:
            if not stored >> slot & 1 and self.quorum.holds(slot, self.confirmed):
                self.copies_missing += 1

    def _finish(self) -> None:
        idle = not self._stored and self.change is None
        if self._is_closing and idle and self.failure is None and not self._is_closed:
            self._is_closed = True
            self._effects.append(Close(self.confirmed, self.length))

    def _replace(self) -> None:
        """Give lost slots to spare bookies or back to their own, as far as there are any."""
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
            self._fail_if_stalled()  # a recovery that is begun anew loses nothing
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
        assert change is not None, "a change that was asked for"
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
            reason = f"bookies {bookies} failed and there are no others in their place"
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
