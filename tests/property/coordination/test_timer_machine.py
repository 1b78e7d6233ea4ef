"""Random histories of timers and half messages against a plain model, with crashes at any point."""

from __future__ import annotations

import random
from itertools import count

import pytest

from headrace.coordination.timers.commands import (
    AddCommand,
    BeginCheckpointCommand,
    CancelCommand,
    ConfigureCommand,
    Copy,
    Deliver,
    DeliveredCommand,
    EndCheckpointCommand,
    MoveCommand,
    NewTimer,
    OpenTimersCommand,
    PollCommand,
    SavePartsCommand,
    SettleHalfCommand,
    TimersLoadedCommand,
    TimerTickCommand,
)
from headrace.coordination.timers.config import HalfConfig
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.state_records import (
    COMMITTED,
    EXPIRED,
    HalfKept,
    Moved,
    Scheduled,
    StoredOrigin,
    checkpoint_of,
)
from headrace.coordination.timers.timer_machine import TimerMachine

HISTORIES = 600
STEPS = 30
CONFIG = HalfConfig(first_check_ms=50, check_interval_ms=40, checks_max=3, audit_ms=100_000)


class ModelledTimers:
    """A machine, its companion log, the partition's log with its sequences, and the model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes]] = []
        self.names = count()
        self.pending: dict[bytes, int] = {}
        """Body -> due time."""
        self.halves: dict[bytes, int] = {}
        """Body -> checks so far."""
        self.ids: dict[bytes, str] = {}
        """Body of a half message -> its id, which a producer may have sent before."""
        self.ended: set[bytes] = set()
        """Cancelled or rolled back."""
        self.delivered: list[bytes] = []
        """The partition's log: the body at index n has sequence n."""
        self.to_deliver: list[Deliver] = []
        self.origins: list[StoredOrigin] = []
        self.machine = self.loaded(0)
        self.ask(OpenTimersCommand(77))

    def loaded(self, start: int) -> TimerMachine:
        machine = TimerMachine(HalfConfig())
        machine.apply(machine.decode(None, start.to_bytes(8)))
        for key, value in self.log[start:]:
            machine.apply(machine.decode(key, value))
        for command in (TimersLoadedCommand(), ConfigureCommand(CONFIG)):
            decision = machine.decide(command, self.now_ms)
            for record in decision.records:
                assert machine.encode(record) is None, "loading writes nothing"
                machine.apply(record)
            self.to_deliver += [e for e in decision.effects if isinstance(e, Deliver)]
        return machine

    def ask(self, command):
        decision = self.machine.decide(command, self.now_ms)
        pairs = [pair for r in decision.records if (pair := self.machine.encode(r)) is not None]
        self.log += pairs
        for record in decision.records:
            self.machine.apply(record)
        self.machine.validate()
        assert self.machine.state.next_offset == len(self.log)
        self.to_deliver += [e for e in decision.effects if isinstance(e, Deliver)]
        return decision.reply

    def body_at(self, offset: int) -> bytes:
        record = self.machine.decode(*self.log[offset])
        assert isinstance(record, Scheduled | HalfKept | Moved)
        return record.body

    # --- steps -------------------------------------------------------------------------------

    def new_timer(self) -> NewTimer:
        body = b"%d" % next(self.names)
        due_ms = self.now_ms + self.rng.choice([-5, 1, 1, 7, 100, 100, 10**7, 10**11])
        return NewTimer(due_ms, self.now_ms, self.rng.randrange(4), body)

    def add(self) -> None:
        timers = [self.new_timer() for _ in range(self.rng.choice([1, 1, 3, 40]))]
        origin = None
        if self.rng.random() < 0.3:
            origin = StoredOrigin(self.rng.randrange(3), 0, len(self.log), self.now_ms)
            self.origins.append(origin)
        reply = self.ask(AddCommand(timers, origin))
        assert [self.body_at(at) for at in reply.offsets] == [timer.body for timer in timers]
        self.pending.update({timer.body: timer.due_ms for timer in timers})

    def repeat(self) -> None:
        """A producer sends its last batch again, since it got no answer."""
        if self.origins:
            assert self.ask(AddCommand([self.new_timer()], self.origins[-1])).offsets is None

    def add_half(self) -> None:
        timer = self.new_timer()
        due_ms = self.rng.choice([0, 0, timer.due_ms])
        name = timer.body.decode()
        if self.ids and self.rng.random() < 0.3:
            name = self.rng.choice(sorted(self.ids.values()))
        self.ids[timer.body] = name
        self.ask(AddCommand([timer._replace(due_ms=due_ms, group="g", message_id=name)]))
        self.halves[timer.body] = 0

    def half_of(self, body: bytes):
        """The pending half message with this body, None if there is none."""
        pending = self.machine.state.halves.saved()
        return next((half for half in pending if self.body_at(half.offset) == body), None)

    def settle(self) -> None:
        if not self.halves:
            return
        body = self.rng.choice(sorted(self.halves))
        is_commit = self.rng.random() < 0.6
        same = [body]
        number, name = self.half_of(body).number, ""
        if self.rng.random() < 0.7:
            number, name = -1, self.ids[body]
            same = [one for one in sorted(self.halves) if self.ids[one] == name]
        halves = [self.half_of(one) for one in same]
        for settled in (len(same), 0):  # the second one is answered in the same way
            reply = self.ask(SettleHalfCommand(number, name, is_commit))
            assert (reply.error, reply.count) == (None, settled)
            assert (reply.outcome.outcome == COMMITTED) == is_commit
        contrary = self.ask(SettleHalfCommand(halves[0].number, "", not is_commit))
        assert contrary.error is not None
        for one, half in zip(same, halves, strict=True):
            del self.halves[one]
            if is_commit:
                self.pending[one] = max(half.due_ms, self.now_ms)
            else:
                self.ended.add(one)

    def poll(self) -> None:
        asked = self.ask(PollCommand("g", 2)).halves
        assert all(self.body_at(half.offset) in self.halves for half in asked)

    def cancel(self) -> None:
        if self.pending:
            entries = list(self.machine.state.schedule.after(ScheduleEntry(-1, -1)))
            if entries:
                entry = self.rng.choice(entries)
                assert self.ask(CancelCommand(*entry)).is_done
                assert not self.ask(CancelCommand(*entry)).is_done
                body = self.body_at(entry.offset)
                del self.pending[body]
                self.ended.add(body)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 4, 6, 50, 200, 10**7])
        deadline_ms = self.machine.next_deadline_ms()
        while deadline_ms is not None and deadline_ms <= self.now_ms:
            self.ask(TimerTickCommand())
            self.check_checks()
            self.deliver()
            state = self.machine.state
            assert state.last_tick_ms == self.now_ms
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self.now_ms + 5:
                self.now_ms += 5

    def check_checks(self) -> None:
        for body in sorted(self.halves):
            half = self.half_of(body)
            if half is None:
                outcomes = self.machine.state.halves.outcomes
                assert any(
                    one.message_id == self.ids[body] and one.outcome == EXPIRED for one in outcomes
                )
                assert self.halves.pop(body) == CONFIG.checks_max
                self.ended.add(body)
            else:
                assert half.checks - self.halves[body] in {0, 1}
                self.halves[body] = half.checks

    def deliver(self) -> None:
        """Append what was taken, as the host does; it may stop anywhere."""
        while self.to_deliver and self.rng.random() < 0.8:
            effect = self.to_deliver.pop(0)
            assert effect.producer_id == 77
            done = min(max(len(self.delivered) - effect.first, 0), len(effect.offsets))
            for offset in effect.offsets[done:]:
                assert len(self.delivered) < effect.first + len(effect.offsets)
                body = self.body_at(offset)
                due_ms = self.pending.pop(body)
                assert due_ms <= self.now_ms, "delivered before its time"
                self.delivered.append(body)
                if self.rng.random() < 0.02:
                    self.crash()
                    return
            if self.rng.random() < 0.8:
                self.ask(DeliveredCommand(effect.first + len(effect.offsets)))

    def begin_checkpoint(self) -> None:
        self.ask(BeginCheckpointCommand())

    def save_parts(self) -> None:
        if not self.ask(SavePartsCommand(self.rng.randrange(1, 4))).is_done:
            self.ask(EndCheckpointCommand())

    def move(self) -> None:
        """Write the records at a stretch of the log again."""
        first = self.rng.randrange(len(self.log))
        offsets = range(first, min(first + 20, len(self.log)))
        copies = [copy for offset in offsets if (copy := self.copy(offset)) is not None]
        missing = self.ask(MoveCommand(copies)).missing
        assert all(first < offset and offset not in offsets for offset in missing)
        if missing:
            copies += [self.copy(offset) for offset in missing]
            assert not self.ask(MoveCommand(copies)).missing

    def copy(self, offset: int) -> Copy | None:
        record = self.machine.decode(*self.log[offset])
        if not isinstance(record, Scheduled | HalfKept | Moved):
            return None
        where = record.due_ms, record.timestamp_ms, record.tag, offset, self.number(offset)
        return Copy(*where, record.body)

    def number(self, offset: int) -> int:
        record = self.machine.decode(*self.log[offset])
        return record.number if isinstance(record, Moved) else offset

    def is_half(self, offset: int) -> bool:
        return isinstance(self.machine.decode(*self.log[self.number(offset)]), HalfKept)

    def crash(self) -> None:
        self.to_deliver.clear()
        start = checkpoint_of(self.log[-1][0])
        self.machine = self.loaded(start)
        self.check()

    # --- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        state = self.machine.state
        entries = list(state.schedule.after(ScheduleEntry(-1, -1)))
        assert entries == sorted(entries)
        assert len(entries) == state.schedule.count
        assert state.schedule.first_ms() == (entries[0].due_ms if entries else None)
        arrived = [one for one in entries if not self.is_half(one.offset)]
        order = [(due_ms, self.number(offset)) for due_ms, offset in arrived]
        assert order == sorted(order), "records of one millisecond changed their order"
        waiting = {self.body_at(entry.offset): entry.due_ms for entry in entries}
        taken = {self.body_at(at) for offsets in state.outstanding.values() for at in offsets}
        undelivered = taken - set(self.delivered)
        assert not taken & set(waiting)
        assert waiting == {b: due for b, due in self.pending.items() if b not in undelivered}
        assert undelivered <= set(self.pending)
        assert {self.body_at(half.offset) for half in state.halves.saved()} == set(self.halves)
        assert len(set(self.delivered)) == len(self.delivered), "delivered twice"
        assert not self.ended & set(self.delivered), "delivered although it was cancelled"

    def drain(self) -> None:
        """In the end everything is delivered that was neither cancelled nor rolled back."""
        for _ in range(10_000):
            if not self.pending:
                break
            self.now_ms += 10**10
            self.ask(TimerTickCommand())
            self.check_checks()
            self.deliver()
            if self.rng.random() < 0.1:
                self.crash()
        assert not self.pending
        sent = next(self.names) - self.repeats - len(self.halves)
        assert len(self.delivered) + len(self.ended) == sent

    def run(self) -> None:
        steps = [
            *([self.add] * 5),
            *([self.pass_time] * 5),
            *([self.deliver] * 2),
            *([self.save_parts] * 3),
            self.begin_checkpoint,
            self.add_half,
            self.settle,
            self.poll,
            self.cancel,
            self.move,
            self.crash,
        ]
        self.repeats = 0
        for _ in range(STEPS):
            self.rng.choice(steps)()
            if self.rng.random() < 0.05:
                before = len(self.origins)
                self.repeat()
                self.repeats += bool(before)
        self.check()
        self.drain()


def play(seed: int) -> None:
    try:
        ModelledTimers(seed).run()
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def test_each_record_is_delivered_once_in_time_or_is_accounted_for():
    for seed in range(HISTORIES):
        play(seed)


@pytest.mark.long
def test_ten_thousand_histories_do_what_the_model_does():
    for seed in range(100_000, 110_000):
        play(seed)


def test_a_committed_half_message_of_an_old_checkpoint_keeps_its_due_time() -> None:
    rig = ModelledTimers(0)
    rig.ask(AddCommand([NewTimer(0, 1, 3, b"x", "g", "id")]))
    reply = rig.ask(SettleHalfCommand(-1, "id", True))
    assert reply.outcome.outcome == COMMITTED
    rig.ask(BeginCheckpointCommand())
    while rig.ask(SavePartsCommand(1)).is_done:
        pass
    rig.ask(EndCheckpointCommand())
    machine = rig.loaded(checkpoint_of(rig.log[-1][0]))
    copies = [Copy(0, 1, 3, 1, 1, b"x")]
    moved = machine.decide(MoveCommand(copies), rig.now_ms).records
    assert moved == [Moved(rig.now_ms, 1, 3, 1, 1, False, b"x")]
