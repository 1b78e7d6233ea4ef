"""The machines that write and recover, step by step, by examples."""

from __future__ import annotations

import pytest

from headrace.storage.bookkeeper.ledger_handle import (
    Acknowledge,
    ChangeEnsemble,
    Close,
    Fail,
    LedgerHandle,
    Send,
)
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.recovery import (
    Fence,
    FencingRead,
    RecoveredLedger,
    Recovery,
    RecoveryFailed,
    WriteAgain,
)
from headrace.storage.bookkeeper.wire import (
    DAMAGED,
    DISCONNECTED,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    TIMED_OUT,
    Entry,
)

METADATA = LedgerMetadata(Quorum(3, 3, 2), (Ensemble(0, ("a", "b", "c")),))


class Spares:
    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def choose(self, ensemble, slot, excluded):
        return next((name for name in self.names if name not in excluded), None)


def handle(*spares: str) -> LedgerHandle:
    return LedgerHandle(METADATA, Spares(*spares).choose)


def stored(machine: LedgerHandle, entry: int, *bookies: str, code: int = OK) -> list:
    effects = []
    for bookie in bookies:
        slot = machine.ensemble.index(bookie)
        effects += machine.responded(Send(entry, slot, bookie, machine._tenures[slot]), code)
    return effects


# --- writing -----------------------------------------------------------------------------------


def test_an_entry_goes_to_all_and_is_acknowledged_by_two_in_its_turn():
    machine = handle()
    added = machine.append(10)
    assert added == (0, -1, 10, [Send(0, 0, "a"), Send(0, 1, "b"), Send(0, 2, "c")])
    assert machine.append(5)[:3] == (1, -1, 15)
    assert stored(machine, 1, "a", "b", "c") == [], "entry 0 is not acknowledged yet"
    assert stored(machine, 0, "c") == []
    assert stored(machine, 0, "a") == [Acknowledge(1)]
    assert machine.append(1)[:3] == (2, 1, 16), "the next entry tells what is acknowledged"


def test_nothing_is_acknowledged_while_the_ensemble_changes():
    machine = handle("d")
    machine.append(10)
    assert stored(machine, 0, "a", code=DISCONNECTED) == [
        ChangeEnsemble(Ensemble(0, ("d", "b", "c")))
    ]
    assert stored(machine, 0, "b", "c") == []
    assert machine.append(1).sends == [Send(1, 1, "b"), Send(1, 2, "c")], "the old one is lost"
    effects = machine.ensemble_changed()
    assert effects == [Send(0, 0, "d", 1), Send(1, 0, "d", 1), Acknowledge(0)]
    assert machine.responded(Send(1, 0, "a"), OK) == [], "the old bookie counts no more"
    assert stored(machine, 1, "d", "b") == [Acknowledge(1)]


def test_a_bookie_that_comes_back_takes_its_own_slot_and_the_copies_it_missed_are_counted():
    spares = Spares()
    machine = LedgerHandle(METADATA, spares.choose)
    machine.append(10)
    machine.append(10)
    assert stored(machine, 0, "a", code=DISCONNECTED) == []
    assert stored(machine, 0, "b", "c") == [Acknowledge(0)]
    assert machine.copies_missing == 1
    spares.names.append("a")
    assert machine.spares_changed() == [ChangeEnsemble(Ensemble(1, ("a", "b", "c")))]
    assert machine.responded(Send(1, 0, "a"), DISCONNECTED) == [], "what it owed before"
    assert machine.ensemble_changed() == [Send(1, 0, "a", 1)]
    assert machine.responded(Send(1, 0, "a"), TIMED_OUT) == [], "it is another tenure's"
    assert stored(machine, 1, "a", "b") == [Acknowledge(1)]
    assert machine.append(1).sends[-1] == Send(2, 1, "b"), "slots 2, 0 and 1"
    assert not machine.lost
    assert machine.copies_missing == 1
    assert stored(machine, 1, "c", code=TIMED_OUT) == [], "there is no other"
    assert machine.copies_missing == 2, "found out after it was acknowledged"


def test_a_slow_change_of_the_ensemble_stops_no_acknowledgement_that_holds_with_and_without_it():
    machine = handle("d")
    machine.append(10)
    stored(machine, 0, "b")
    assert stored(machine, 0, "a", code=DISCONNECTED)
    assert stored(machine, 0, "c") == []
    assert machine.change_is_slow() == [Acknowledge(0)]
    machine.append(10)
    assert machine.responded(Send(1, 0, "a"), OK) == []
    assert stored(machine, 1, "b") == [], "what the old bookie of the slot says does not count"
    assert stored(machine, 1, "c") == [Acknowledge(1)]
    machine.append(10)
    assert machine.ensemble_changed() == [Send(2, 0, "d", 1)]
    assert machine.new_ensembles == [Ensemble(0, ("d", "b", "c"))]
    assert machine.copies_missing == 2


def test_a_ledger_without_an_ack_quorum_of_bookies_waits_for_one():
    spares = Spares()
    machine = LedgerHandle(METADATA, spares.choose)
    machine.append(10)
    assert stored(machine, 0, "a", "b", code=DISCONNECTED) == []
    assert machine.is_stalled
    assert stored(machine, 0, "c") == []
    spares.names.append("b")
    assert machine.spares_changed() == [ChangeEnsemble(Ensemble(0, ("a", "b", "c")))]
    assert machine.give_up() == [], "there is one now"
    assert machine.ensemble_changed() == [Send(0, 1, "b", 1)]
    assert stored(machine, 0, "b") == [Acknowledge(0)]


def test_an_answer_of_the_bookie_that_was_replaced_is_forgotten():
    machine = handle("d")
    machine.append(10)
    assert stored(machine, 0, "a") == []
    machine.append(10)
    stored(machine, 1, "a", code=TIMED_OUT)
    assert machine.ensemble_changed() == [Send(0, 0, "d", 1), Send(1, 0, "d", 1)]
    assert stored(machine, 0, "b") == [], "b and d are needed now"
    assert stored(machine, 0, "d") == [Acknowledge(0)]


def test_without_a_spare_bookie_two_of_three_go_on_and_one_does_not():
    spares = Spares()
    machine = LedgerHandle(METADATA, spares.choose)
    machine.append(10)
    assert stored(machine, 0, "b", code=DISCONNECTED) == []
    assert stored(machine, 0, "a", "c") == [Acknowledge(0)]
    assert machine.append(10).sends == [Send(1, 2, "c"), Send(1, 0, "a")]
    spares.names.append("d")
    assert machine.spares_changed() == [ChangeEnsemble(Ensemble(1, ("a", "d", "c")))]
    assert machine.ensemble_changed() == [Send(1, 1, "d", 1)]
    stored(machine, 1, "a", code=DISCONNECTED)
    assert stored(machine, 1, "c", code=DISCONNECTED) == []
    assert machine.is_stalled
    (failed,) = machine.give_up()
    assert isinstance(failed, Fail)
    assert not failed.is_fenced
    assert stored(machine, 1, "a", "d") == [], "once failed, nothing is acknowledged"


@pytest.mark.parametrize("code", [FENCED, 102])
def test_one_bookie_that_says_fenced_ends_it(code):
    machine = handle("d")
    machine.append(10)
    (failed,) = stored(machine, 0, "a", code=code)
    assert failed.is_fenced
    assert stored(machine, 0, "b", "c") == []


def test_metadata_that_another_changed_end_it_and_its_own_changes_do_not():
    machine = handle("d")
    machine.append(10)
    assert machine.metadata_seen(METADATA) == []
    (change,) = stored(machine, 0, "a", code=DISCONNECTED)
    assert machine.metadata_seen(METADATA.with_ensemble(change.ensemble)) == []
    foreign = METADATA.with_ensemble(Ensemble(0, ("x", "b", "c")))
    (failed,) = machine.metadata_seen(foreign)
    assert not failed.is_fenced
    for state in (LedgerState.IN_RECOVERY, LedgerState.CLOSED):
        machine = handle()
        marked = (
            METADATA.in_recovery() if state is LedgerState.IN_RECOVERY else (METADATA.closed(-1, 0))
        )
        (failed,) = machine.metadata_seen(marked)
        assert failed.is_fenced


def test_it_closes_after_the_last_acknowledged_entry():
    machine = handle()
    machine.append(10)
    assert machine.close() == []
    assert stored(machine, 0, "a", "b") == [Acknowledge(0), Close(0, 10)]
    assert machine.metadata_seen(METADATA.closed(0, 10)) == []
    assert handle().close() == [Close(-1, 0)]


# --- recovering --------------------------------------------------------------------------------


def entry(number: int, confirmed: int = -1) -> Entry:
    return Entry(number, confirmed, 10 * (number + 1), memoryview(b"0123456789"))


def fenced(machine: Recovery, *answers: tuple[int, int, Entry | None]) -> list:
    return [effect for answer in answers for effect in machine.fenced(*answer)]


def only(kind, effects) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_recovery_fences_an_ack_quorum_of_every_entry_before_it_reads():
    machine = Recovery(METADATA.in_recovery(), Spares().choose)
    assert machine.start() == [Fence(0, "a"), Fence(1, "b"), Fence(2, "c")]
    assert machine.fenced(0, OK, entry(7, 5)) == []
    assert machine.fenced(1, DISCONNECTED, None) == []
    effects = machine.fenced(2, NO_LEDGER, None)
    # The length up to the last confirmed entry is asked for, and what lies behind it.
    assert [one.entry for one in effects if one.bookie == "a"] == [5, *range(6, 10)]
    # One more is asked for with each that is found, as long as it goes on; not without end.
    assert machine.read(5, "a", OK, entry(5)) == []
    asked, widest = 9, 0
    for number in range(6, 40):
        found = only(FencingRead, machine.read(number, "a", OK, entry(number)))
        asked += sum(one.bookie == "a" for one in found)
        widest = max(widest, asked - number)
    assert (widest, asked - 39) == (16, 16)


def test_recovery_fails_where_too_few_can_be_fenced():
    machine = Recovery(METADATA.in_recovery(), Spares().choose)
    machine.start()
    effects = fenced(machine, (0, OK, None), (1, TIMED_OUT, None), (2, DISCONNECTED, None))
    assert only(RecoveryFailed, effects)


def test_recovery_rewrites_an_entry_any_bookie_has_and_ends_at_one_that_two_lack():
    machine = Recovery(METADATA.in_recovery(), Spares().choose)
    machine.start()
    effects = fenced(machine, (0, NO_ENTRY, None), (1, NO_ENTRY, None), (2, OK, entry(0)))
    assert FencingRead(0, "a") in effects
    assert machine.read(0, "a", NO_ENTRY, None) == []
    (again, *more) = machine.read(0, "c", OK, entry(0))
    assert isinstance(again, WriteAgain)
    assert (again.entry, again.confirmed, again.length) == (0, -1, 10)
    assert only(FencingRead, more)
    assert machine.read(1, "b", NO_ENTRY, None) == []
    assert machine.read(1, "a", NO_ENTRY, None) == [], "entry 0 is not safe yet"
    assert machine.read(1, "c", OK, entry(1)) == [], "it is too late for entry 1"
    assert machine.responded(Send(0, 0, "a"), OK) == []
    assert machine.responded(Send(0, 1, "b"), OK) == [RecoveredLedger(0, 10, [])]


def test_entries_written_again_do_not_confirm_what_only_this_recovery_knows():
    # Found by the simulation: a recovery replaced a bookie, wrote entry 0 to the new one, told so
    # in entry 1, and died. The next one trusted that: entry 0 stayed on too few bookies.
    machine = Recovery(METADATA.in_recovery(), Spares("d").choose)
    machine.start()
    fenced(machine, (0, OK, entry(2)), (1, OK, entry(2)), (2, OK, entry(2)))
    machine.read(0, "a", OK, entry(0))
    assert Send(0, 2, "d", 1) in machine.responded(Send(0, 2, "c"), DISCONNECTED)
    machine.responded(Send(0, 0, "a"), OK)
    machine.responded(Send(0, 2, "d", 1), OK)
    (again,) = only(WriteAgain, machine.read(1, "a", OK, entry(1)))
    assert again.confirmed == -1
    assert Send(1, 2, "d", 1) in again.sends


def test_new_ensembles_go_into_the_metadata_with_the_end():
    machine = Recovery(METADATA.in_recovery(), Spares("d").choose)
    machine.start()
    fenced(machine, (0, OK, entry(0)), (1, OK, entry(0)), (2, TIMED_OUT, None))
    machine.read(0, "a", OK, entry(0))
    machine.responded(Send(0, 2, "c"), TIMED_OUT)
    machine.responded(Send(0, 0, "a"), OK)
    machine.responded(Send(0, 1, "b"), OK)
    machine.read(1, "a", NO_ENTRY, None)
    (done,) = machine.read(1, "b", NO_ENTRY, None)
    assert done == RecoveredLedger(0, 10, [Ensemble(0, ("a", "b", "d"))])


def test_an_entry_that_no_bookie_can_decide_fails_the_recovery():
    machine = Recovery(METADATA.in_recovery(), Spares().choose)
    machine.start()
    fenced(machine, (0, OK, entry(0)), (1, OK, entry(0)), (2, OK, entry(0)))
    effects = machine.read(0, "a", NO_ENTRY, None)
    effects += machine.read(0, "b", TIMED_OUT, None)
    effects += machine.read(0, "c", DISCONNECTED, None)
    (failed,) = only(RecoveryFailed, effects)
    assert not failed.is_damaged
    assert "no answer from ['b', 'c']" in failed.reason


@pytest.mark.parametrize("lacking", [NO_ENTRY, DAMAGED])
def test_an_entry_with_only_damaged_copies_is_distinguished_from_silent_bookies(lacking):
    machine = Recovery(METADATA.in_recovery(), Spares().choose)
    machine.start()
    fenced(machine, (0, OK, entry(0)), (1, OK, entry(0)), (2, OK, entry(0)))
    effects = machine.read(0, "a", lacking, None)
    effects += machine.read(0, "b", DAMAGED, None)
    assert not effects, "one bookie may still have it"
    (failed,) = only(RecoveryFailed, machine.read(0, "c", DAMAGED, None))
    assert failed.is_damaged
    assert "'b', 'c'] are damaged" in failed.reason
