"""Recovers a ledger: fences its writer, finds its last entry, makes it durable, closes it.

Invariants: a pure state machine like `ledger_handle`, which it uses to rewrite entries. The
metadata is IN_RECOVERY before it begins, so no ensemble changes concurrently.

1. Fence every bookie of the last ensemble. Enough have answered when the others cannot form an ack
   quorum for any entry. The answers contain the last add confirmed; earlier ensembles are
   confirmed entirely.
2. Read on from there, several entries ahead, from all bookies of each entry at once, with fencing
   reads. An entry that any bookie has may have been acknowledged: it is rewritten, marked as
   recovery, until it has its ack quorum. An entry that W - A + 1 bookies lack never was: the ledger
   ends before it. If neither can be determined, recovery fails and may be retried.
3. Failed bookies are replaced locally; the new ensembles are written to the metadata together with
   the end, which closes the ledger. Until then nothing else counts as confirmed.
Source: `LedgerRecoveryOp`, `ReadLastConfirmedOp`, `ReadOnlyLedgerHandle` of BookKeeper 4.17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.storage.bookkeeper.ledger_handle import Acknowledge, LedgerHandle, Send
from headrace.storage.bookkeeper.ledger_metadata import LedgerState
from headrace.storage.bookkeeper.wire import DAMAGED, NO_ENTRY, NO_LEDGER, OK, UNAUTHORIZED, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.storage.bookkeeper.ledger_handle import ChooseSpare
    from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata

READ_AHEAD_FIRST, READ_AHEAD_MAX = 4, 16
"""Entries to read ahead: a few, since few are in flight as a rule, plus one for each one found.
Bookies take longer to report a missing entry than to return one."""


class Fence(NamedTuple):
    """Send the fencing read of the last entry to the bookie in `slot`."""

    slot: int
    bookie: str


class FencingRead(NamedTuple):
    """Read `entry` from `bookie` with a fencing read."""

    entry: int
    bookie: str


class WriteAgain(NamedTuple):
    """Rewrite the entry, marked as recovery, with the sends in `sends`."""

    entry: int
    confirmed: int
    length: int
    payload: memoryview
    sends: list[Send]


class RecoveredLedger(NamedTuple):
    """The ledger ends at `last_entry` (-1: it is empty); close it with these new ensembles."""

    last_entry: int
    length: int
    ensembles: list[Ensemble]


class RecoveryFailed(NamedTuple):
    """The ledger cannot be recovered now; `is_damaged`: nor when all its bookies are well."""

    reason: str
    is_damaged: bool = False


Effect = Fence | FencingRead | WriteAgain | Send | RecoveredLedger | RecoveryFailed


def mark(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """The metadata update before a recovery."""
    return metadata.in_recovery() if metadata.state is LedgerState.OPEN else None


def put_end(
    marked: LedgerMetadata, found: RecoveredLedger
) -> Callable[[LedgerMetadata], LedgerMetadata | None]:
    """The metadata update for a RecoveredLedger, if the metadata is as the recovery knew it.

    Otherwise another recovery was faster; if that did not close the ledger, this one restarts.
    """

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is not LedgerState.IN_RECOVERY or (
            metadata.last_ensemble != marked.last_ensemble
        ):
            return None
        for ensemble in found.ensembles:
            metadata = metadata.with_ensemble(ensemble)
        return metadata.closed(found.last_entry, found.length)

    return change


class Recovery:
    """See the module."""

    def __init__(self, metadata: LedgerMetadata, choose_spare: ChooseSpare) -> None:
        self._metadata = metadata
        self._quorum = metadata.quorum
        self._choose_spare = choose_spare
        self._bookies = metadata.last_ensemble.bookies
        self._silent = set(range(self._quorum.ensemble))
        """Slots that have not answered the fencing read yet."""
        self._fenced: set[int] = set()
        self._confirmed = metadata.last_ensemble.first_entry - 1
        self._length_at: dict[int, int] = {-1: 0}
        """Entry -> known length of the ledger up to and including it."""
        self._handle: LedgerHandle | None = None
        self._asked = -1
        """The last entry being read."""
        self._found: dict[int, Entry] = {}
        self._missing: dict[int, set[str]] = {}
        self._unknown: dict[int, set[str]] = {}
        self._damaged: dict[int, set[str]] = {}
        """Those of `_unknown` that have a damaged copy."""
        self._end: int | None = None
        """The last entry, once known."""
        self._is_over = False
        self._effects: list[Effect] = []

    # --- commands ----------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Start the recovery."""
        self._effects += [Fence(slot, bookie) for slot, bookie in enumerate(self._bookies)]
        return self._drain()

    def fenced(self, slot: int, code: int, last: Entry | None) -> list[Effect]:
        """The bookie in `slot` answered the fencing read; `last` is a valid entry, if any."""
        if self._is_over or slot not in self._silent:
            return []
        self._silent.discard(slot)
        if code == UNAUTHORIZED:
            self._fail(f"bookie {self._bookies[slot]} rejected the password of this ledger")
            return self._drain()
        if code in {OK, NO_ENTRY, NO_LEDGER}:
            self._fenced.add(slot)
        if self._handle is not None:
            return []  # enough had answered before
        if last is not None:
            self._confirmed = max(self._confirmed, last.last_add_confirmed)
            self._length_at[last.entry] = last.length
        if self._quorum.is_covered(self._fenced):
            self._handle = LedgerHandle(
                self._metadata,
                self._choose_spare,
                confirmed=self._confirmed,
                length=self._length_at.get(self._confirmed, 0),
                local_changes=True,
            )
            self._asked = self._confirmed
            if self._confirmed not in self._length_at:
                self._ask(self._confirmed)  # for the length up to it
            self._read_ahead()
        elif not self._silent:
            self._fail(f"only slots {sorted(self._fenced)} of {self._bookies} could be fenced")
        return self._drain()

    def read(self, entry: int, bookie: str, code: int, found: Entry | None) -> list[Effect]:
        """A bookie answered the read of `entry`; `found` is set if it has a valid one."""
        handle = self._handle
        if self._is_over or handle is None or self._is_settled(entry):
            return []
        if found is not None:
            self._found[entry] = found
        elif code in {NO_ENTRY, NO_LEDGER}:
            self._missing.setdefault(entry, set()).add(bookie)
        else:
            self._unknown.setdefault(entry, set()).add(bookie)
            if code == DAMAGED:
                self._damaged.setdefault(entry, set()).add(bookie)
        self._settle(handle)
        return self._drain()

    def responded(self, send: Send, code: int) -> list[Effect]:
        """A bookie answered a rewrite."""
        if self._is_over:
            return []
        assert self._handle is not None
        self._take(self._handle.responded(send, code))
        return self._drain()

    # --- internal ----------------------------------------------------------------------------

    def _ask(self, entry: int) -> None:
        self._effects += [FencingRead(entry, bookie) for bookie in self._metadata.bookies_of(entry)]

    def _read_ahead(self) -> None:
        assert self._handle is not None
        found = self._handle.next_entry - 1
        ahead = min(READ_AHEAD_FIRST + found - self._confirmed, READ_AHEAD_MAX)
        while self._asked < found + ahead:
            self._asked += 1
            self._ask(self._asked)

    def _is_settled(self, entry: int) -> bool:
        assert self._handle is not None
        if entry == self._confirmed:
            return self._confirmed in self._length_at
        return entry < self._handle.next_entry or self._end is not None or entry in self._found

    def _settle(self, handle: LedgerHandle) -> None:
        """Continue from the first unsettled entry as far as the answers allow."""
        if self._confirmed not in self._length_at:
            known = self._found.pop(self._confirmed, None)
            if known is None:
                self._check_readable(self._confirmed)
                return
            self._length_at[self._confirmed] = handle.length = known.length
        while self._end is None:
            entry = handle.next_entry
            found = self._found.pop(entry, None)
            if found is None:
                if len(self._missing.get(entry, ())) >= self._quorum.missing:
                    self._end = entry - 1
                else:
                    self._check_readable(entry)
                break
            self._missing.pop(entry, None)
            self._unknown.pop(entry, None)
            self._damaged.pop(entry, None)
            added = handle.append(len(found.payload))
            handle.length = found.length  # as counted by its writer
            # Not the entries confirmed since: they may be on bookies that the metadata does not
            # name yet, and if this recovery fails, the next one must not rely on them.
            self._effects.append(
                WriteAgain(entry, self._confirmed, found.length, found.payload, added.sends)
            )
            self._read_ahead()
        self._finish(handle)

    def _check_readable(self, entry: int) -> None:
        unknown = self._unknown.get(entry, set())
        if len(unknown | self._missing.get(entry, set())) < self._quorum.write:
            return
        silent = unknown - self._damaged.get(entry, set())
        if silent:
            self._fail(f"entry {entry} cannot be read: no answer from {sorted(silent)}")
        else:
            copies = f"its copies on {sorted(unknown)} are damaged" if unknown else "all lack it"
            self._fail(f"entry {entry} cannot be read: {copies}", is_damaged=True)

    def _take(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._effects.append(effect)
            elif not isinstance(effect, Acknowledge):
                assert self._handle is not None
                failure = self._handle.failure
                assert failure is not None, "with local changes, there are no other effects"
                self._fail(failure.reason)
        if self._handle is not None:
            self._finish(self._handle)

    def _finish(self, handle: LedgerHandle) -> None:
        if self._end is not None and handle.confirmed == self._end and not self._is_over:
            self._is_over = True
            self._effects.append(RecoveredLedger(self._end, handle.length, handle.new_ensembles))

    def _fail(self, reason: str, *, is_damaged: bool = False) -> None:
        if not self._is_over:
            self._is_over = True
            self._effects.append(RecoveryFailed(reason, is_damaged))

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
