"""Bookies, their network and the ledger's metadata, simulated: one seed decides what happens.

Invariants: the machines of `storage/bookkeeper` run as they are; everything around them is
played here. In each step one of all the events that could come next comes next, so messages
overtake each other at will. Requests and answers get lost: the sender hears of a time-out, and what
was on its way may still arrive. Bookies stop and come back; what they have answered for they keep.
"""

from __future__ import annotations

from random import Random

from headrace.storage.bookkeeper.ensemble import BookiePool
from headrace.storage.bookkeeper.ledger_handle import (
    Acknowledge,
    ChangeEnsemble,
    Close,
    Fail,
    LedgerHandle,
    Send,
    put_end,
    put_ensemble,
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
    mark,
)
from headrace.storage.bookkeeper.recovery import put_end as put_recovered_end
from headrace.storage.bookkeeper.wire import (
    DISCONNECTED,
    FENCED,
    LAST_ADD_CONFIRMED,
    NO_ENTRY,
    OK,
    TIMED_OUT,
    Entry,
)

QUORUMS = [
    Quorum(3, 3, 2),
    Quorum(3, 3, 2),
    Quorum(3, 2, 2),
    Quorum(4, 3, 2),
    Quorum(5, 3, 2),
    Quorum(5, 3, 3),
    Quorum(4, 4, 3),
    Quorum(5, 2, 1),
    Quorum(2, 2, 2),
    Quorum(3, 3, 3),
    Quorum(3, 3, 1),
]


class Bookie:
    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.is_fenced = False
        self.is_up = True

    def add(self, entry: Entry, is_recovery: bool) -> int:
        if self.is_fenced and not is_recovery:
            return FENCED
        self.entries[entry.entry] = entry
        return OK

    def fencing_read(self, number: int) -> tuple[int, Entry | None]:
        self.is_fenced = True
        if number == LAST_ADD_CONFIRMED:
            number = max(self.entries, default=-2)
        found = self.entries.get(number)
        return (OK, found) if found is not None else (NO_ENTRY, None)


class SimulatedEnsemble:
    """Everything but the machines."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.quorum = self.random.choice(QUORUMS)
        spare_count = self.random.choice([0, 0, 1, 1, 2, 3])
        names = [f"b{number}:1" for number in range(self.quorum.ensemble + spare_count)]
        self.bookies = {name: Bookie() for name in names}
        self.pool = BookiePool({}, quarantine_first_ms=50, quarantine_max_ms=400)
        self.pool.set_writable(names)
        self.loss = self.random.choice([0, 0, 0.02, 0.1, 0.3])
        self.events: list = []
        self.step = 0
        first = Ensemble(0, tuple(self.random.sample(names, self.quorum.ensemble)))
        self.metadata = LedgerMetadata(self.quorum, (first,))
        self.version = 0

    def later(self, act, *arguments) -> None:
        self.events.append((act, arguments))

    def run(self, until=lambda: False) -> None:
        while self.events and not until():
            self.step += 1
            assert self.step < 200_000, "it does not come to an end"
            # Mostly the oldest, so that time passes; sometimes any.
            at = 0 if self.random.random() < 0.4 else self.random.randrange(len(self.events))
            act, arguments = self.events.pop(at)
            act(*arguments)

    def choose_spare(self, ensemble, slot, excluded):
        return self.pool.choose_spare(
            ensemble, slot, excluded, self.step * 1_000_000, self.random.randrange
        )

    # --- the network -------------------------------------------------------------------------

    def request(self, bookie: str, work, answer, lost: object) -> None:
        """Have `work(bookie)` done and its result given to `answer`, as far as nothing is lost."""
        rng = self.random.random()

        def arrive(is_answered: bool) -> None:
            target = self.bookies[bookie]
            if not target.is_up:
                if is_answered:
                    fail(DISCONNECTED)
                return
            result = work(target)
            if is_answered:
                self.later(answer, result)

        def fail(code: int) -> None:
            self.pool.failed(bookie, self.step * 1_000_000)
            answer((code, None) if lost is None else code)

        if rng < self.loss / 3:
            self.later(fail, TIMED_OUT)  # the request got lost
        elif rng < self.loss * 2 / 3:
            self.later(fail, TIMED_OUT)  # it is late: it arrives when nobody waits any more
            self.later(self.later, self.later, arrive, False)
        elif rng < self.loss:
            arrive(False)  # its answer got lost
            self.later(fail, TIMED_OUT)
        else:
            self.later(arrive, True)

    # --- the metadata ------------------------------------------------------------------------

    def update(self, known: LedgerMetadata, version: int, change, done) -> None:
        """As `LedgerMetadataService.update`: `done(metadata, version)` in the end."""
        wanted = change(known)
        if wanted is None:
            self.later(done, known, version)
            return

        def put() -> None:
            rng = self.random.random()
            if rng < self.loss / 2:
                self.later(read)  # the connection broke, and it was not done
                return
            if self.version != version:
                self.later(read)
                return
            self.metadata, self.version = wanted, self.version + 1
            if rng < self.loss:
                self.later(read)  # the connection broke, and it was done
            else:
                self.later(done, wanted, self.version)

        def read() -> None:
            found, at = self.metadata, self.version
            if found == wanted:
                self.later(done, found, at)
            else:
                self.later(self.update, found, at, change, done)

        self.later(put)


class Writer:
    """Carries out what a LedgerHandle decides."""

    def __init__(self, world: SimulatedEnsemble) -> None:
        self.world = world
        self.handle = LedgerHandle(world.metadata, world.choose_spare)
        self.known = (world.metadata, world.version)
        self.entries: list[Entry] = []
        self.acknowledged = -1
        self.failure: Fail | None = None
        self.is_closed = False
        self.is_change_slow = False
        self.was_change_slow = False
        self.left: set[str] = set()
        """Bookies that failed and lost a slot."""
        self.has_bookie_returned = False

    def append(self) -> None:
        if self.failure is not None:
            return
        size = self.world.random.randrange(1, 50)
        added = self.handle.append(size)
        payload = memoryview(b"%d" % added.entry + bytes(size))[:size]
        self.entries.append(Entry(added.entry, added.confirmed, added.length, payload))
        for send in added.sends:
            self.send(send)

    def send(self, send: Send) -> None:
        entry = self.entries[send.entry]
        self.world.request(
            send.bookie,
            lambda bookie: bookie.add(entry, False),
            lambda code: self.carry_out(self.handle.responded(send, code)),
            OK,
        )

    def carry_out(self, effects) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.send(effect)
                case Acknowledge(entry):
                    self.check_acknowledged(entry)
                    self.acknowledged = entry
                case ChangeEnsemble(ensemble):
                    assert self.handle.change is not None
                    self.left |= {self.handle.ensemble[slot] for slot in self.handle.change}
                    if self.left & set(self.handle.change.values()):
                        self.has_bookie_returned = True
                    change = put_ensemble(self.known[0].last_ensemble, ensemble)
                    self.world.update(*self.known, change, self.changed)
                    self.wanted = ensemble
                case Close():
                    self.close = effect
                    self.world.update(*self.known, put_end(effect), self.closed)
                case Fail():
                    self.failure = effect

    def check_acknowledged(self, last: int) -> None:
        """What a reader of the metadata of this moment would find, and one after the change that
        is under way."""
        world = self.world
        assert self.handle.change is None or self.is_change_slow, "acknowledged during a change"
        assert self.failure is None
        readers = [world.metadata]
        if self.handle.change is not None and world.metadata.state is LedgerState.OPEN:
            readers.append(world.metadata.with_ensemble(self.wanted))
        for entry in range(self.acknowledged + 1, last + 1):
            for metadata in readers:
                holders = metadata.bookies_of(entry)
                stored = sum(entry in world.bookies[bookie].entries for bookie in holders)
                assert stored >= world.quorum.ack, f"entry {entry} is on {stored} of {holders}"

    def changed(self, metadata: LedgerMetadata, version: int) -> None:
        self.is_change_slow = False
        self.known = (metadata, version)
        if metadata.state is LedgerState.OPEN and metadata.last_ensemble == self.wanted:
            self.carry_out(self.handle.ensemble_changed())
        else:
            self.carry_out(self.handle.change_failed(is_fenced=True, reason="changed"))

    def closed(self, metadata: LedgerMetadata, version: int) -> None:
        ours = (LedgerState.CLOSED, self.close.last_entry, self.close.length)
        if (metadata.state, metadata.last_entry, metadata.length) == ours:
            self.is_closed = True
        else:
            self.carry_out(self.handle.change_failed(is_fenced=True, reason="recovered"))

    def look(self) -> None:
        """The watch on the metadata fires."""
        metadata, version = self.world.metadata, self.world.version
        if version > self.known[1]:
            if self.handle.change is None:
                self.known = (metadata, version)
            self.carry_out(self.handle.metadata_seen(metadata))

    def find_spares(self) -> None:
        self.carry_out(self.handle.spares_changed())

    def grow_impatient(self) -> None:
        """The change of metadata that is under way, if any, takes long."""
        if self.handle.change is not None:
            self.is_change_slow = self.was_change_slow = True
            self.carry_out(self.handle.change_is_slow())

    def give_up(self) -> None:
        self.carry_out(self.handle.give_up())

    def seal(self) -> None:
        if self.failure is None:
            self.carry_out(self.handle.close())


class Recoverer:
    """Carries out what a Recovery decides."""

    def __init__(self, world: SimulatedEnsemble) -> None:
        self.world = world
        self.result: LedgerMetadata | None = None
        self.has_failed = False
        self.frames: dict[int, Entry] = {}

    def start(self) -> None:
        self.world.update(self.world.metadata, self.world.version, mark, self.marked)

    def marked(self, metadata: LedgerMetadata, version: int) -> None:
        if metadata.state is LedgerState.CLOSED:
            self.result = metadata
            return
        self.known = (metadata, version)
        self.frames = {}
        self.machine = Recovery(metadata, self.world.choose_spare)
        self.carry_out(self.machine, self.machine.start())

    def carry_out(self, machine: Recovery, effects) -> None:
        world = self.world
        for effect in effects:
            match effect:
                case Fence(slot, bookie):
                    world.request(
                        bookie,
                        lambda target: target.fencing_read(LAST_ADD_CONFIRMED),
                        lambda answer, slot=slot: self.carry_out(
                            machine, machine.fenced(slot, *answer)
                        ),
                        None,
                    )
                case FencingRead(entry, bookie):
                    world.request(
                        bookie,
                        lambda target, entry=entry: target.fencing_read(entry),
                        lambda answer, entry=entry, bookie=bookie: self.carry_out(
                            machine, machine.read(entry, bookie, *answer)
                        ),
                        None,
                    )
                case WriteAgain(entry, confirmed, length, payload, sends):
                    self.frames[entry] = Entry(entry, confirmed, length, payload)
                    for send in sends:
                        self.send(machine, send)
                case Send():
                    self.send(machine, effect)
                case RecoveredLedger():
                    metadata, version = self.known
                    change = put_recovered_end(metadata, effect)
                    world.update(metadata, version, change, self.marked_or_closed)
                case RecoveryFailed():
                    self.has_failed = True

    def marked_or_closed(self, metadata: LedgerMetadata, version: int) -> None:
        self.marked(metadata, version)

    def send(self, machine: Recovery, send: Send) -> None:
        entry = self.frames[send.entry]
        self.world.request(
            send.bookie,
            lambda bookie: bookie.add(entry, True),
            lambda code: self.carry_out(machine, machine.responded(send, code)),
            OK,
        )
