"""Random histories of share groups against the plain model, by offset and by key, with crashes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.kit.machines import carry_out, replay
from tests.property.coordination.share_model import (
    ACQUIRED,
    ARCHIVING,
    FINISHED,
    Attributes,
    ShareModel,
)

from headrace.coordination.shares.commands import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AcquireCommand,
    ClaimCommand,
    DeadLetter,
    DeadLetteredCommand,
    DescribeCommand,
    LearnCommand,
    ListParkedCommand,
    LogStartCommand,
    OpenShareGroupCommand,
    ParkKeyCommand,
    PeekCommand,
    RecordOrder,
    ReleaseKeyCommand,
    ReleaseMemberCommand,
    RepeatCommand,
    SettleCommand,
    Settlement,
    ShareLoadedCommand,
    ShareTickCommand,
)
from headrace.coordination.shares.config import EXCLUSIVE, FAILOVER, SHARED, ShareConfig
from headrace.coordination.shares.ended import LOCK_EXPIRED
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.errors import (
    DeliveryExpired,
    DeliveryFinished,
    DeliveryLost,
    DeliverySettled,
    DeliveryTaken,
    GroupFull,
)

GROUP = "g"
MEMBERS = ("a", "b", "c")
HISTORIES = 400
STEPS = 60


def numbers(acquired):
    return [n for first, last, _ in acquired for n in range(first, last + 1)]


class ModelledShares:
    """A machine with its journal, and the model beside it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.config = ShareConfig(
            lock_ms=rng.choice([50, 1_000]),
            delivery_count_max=rng.choice([2, 3, 5, 50]),
            unfinished_max=rng.choice([5, 20, 2_000]),
            is_ordered=rng.random() < 0.5,
            backoff_ms=rng.choice([(), (10,), (10, 100)]),
            has_dead_letters=rng.random() < 0.5,
            are_expired_dead=rng.random() < 0.5,
            has_attributes=rng.random() < 0.4,
            filter_tags=rng.choice(["", "", "x"]),
            subscription=rng.choice([SHARED, SHARED, SHARED, FAILOVER, EXCLUSIVE]),
        )
        self.now_ms = 1_000
        self.log_end = 0
        self.log_start = 0
        self.keys = {offset: rng.randrange(4) for offset in range(10_000)}
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.attributes = {}
        if self.config.has_attributes:
            self.attributes = {offset: self.some_attributes() for offset in range(10_000)}
        self.model = ShareModel(self.config, 0, self.keys, self.attributes)
        self.letters: list[tuple[int, int]] = []
        self.attempts = 0
        self.machine = ShareMachine()
        self.ask(OpenShareGroupCommand(GROUP, 0, self.config))

    def some_attributes(self) -> Attributes:
        rng = self.rng
        expires_ms = rng.randrange(1_000, 6_000) if rng.random() < 0.2 else -1
        wanted_by = ("", *(name for name in "xy" if rng.random() < 0.7))
        return Attributes(rng.randrange(4), expires_ms, wanted_by)

    def row(self, offset: int) -> RecordOrder:
        key = self.keys[offset] if self.config.is_ordered else -1 - offset
        found = self.attributes.get(offset, Attributes())
        is_wanted = self.config.filter_tags in found.wanted_by
        return RecordOrder(offset, key, found.priority, found.expires_ms, is_wanted)

    @property
    def known(self) -> list[int]:
        """The offsets whose rows the machine knows: not those that it has forgotten."""
        keyed = self.machine.groups[GROUP].keyed
        return [] if keyed is None else sorted(keyed._rows)

    @property
    def rows_end(self) -> int:
        keyed = self.machine.groups[GROUP].keyed
        return 0 if keyed is None else keyed.rows_end

    def ask(self, command):
        decision = carry_out(self.machine, command, self.now_ms, self.journal)
        letters = [one for one in decision.effects if isinstance(one, DeadLetter)]
        self.letters += [(letter.first, letter.last) for letter in letters if letter.has_copy]
        return decision.reply

    # --- steps -------------------------------------------------------------------------------

    def produce(self) -> None:
        self.log_end += self.rng.randrange(1, 30)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 9, 10, 60, 1_000])
        self.tick_if_due()

    def tick_if_due(self) -> None:
        known = self.known
        for _ in range(10):
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is None or deadline_ms > self.now_ms:
                break
            self.ask(ShareTickCommand())
        else:
            raise AssertionError("the machine is never done with this moment")
        self.model.expire(self.now_ms, known)

    def claim(self, member: str) -> bool:
        """Whether the member has the partition, in groups where one member has all of it."""
        if not self.config.is_sticky:
            return True
        expected = self.model.claim(member, self.now_ms)
        reply = self.ask(ClaimCommand(GROUP, member))
        assert reply.is_owner == expected
        is_refused = not expected and self.config.subscription == EXCLUSIVE
        assert isinstance(reply.error, GroupFull) == is_refused
        assert expected or is_refused or reply.wait_ms > 0, "it would ask again and again"
        return expected

    def acquire(self) -> None:
        records_max = self.rng.choice([1, 2, 10, 500])
        member = self.rng.choice(MEMBERS)
        if not self.claim(member):
            return
        takes_followers = self.rng.random() < 0.4
        peek = PeekCommand(GROUP, self.log_end, records_max, takes_followers)
        peeked = self.ask(peek)
        assert peeked.error is None
        if peeked.rows_from >= 0:
            self.learn(peeked.rows_from)
            self.tick_if_due()  # a wait may have ended before its record was known again
        peeked = self.ask(peek)
        while peeked.again_from >= 0:  # keys whose next records were forgotten
            self.learn(peeked.again_from)
            self.tick_if_due()
            peeked = self.ask(peek)
        within = sorted(peeked.ranges)
        is_strict = self.rng.random() < 0.5
        ways = within, records_max, is_strict, -1, "", takes_followers
        known = self.known
        reply = self.ask(AcquireCommand(GROUP, member, *ways))
        assert reply.error is None
        if takes_followers:
            self.check_chains(reply.acquired, known, records_max)
        else:
            self.check_priorities(reply.acquired, records_max)
        until_ms = self.now_ms + self.config.lock_ms
        together = numbers(reply.acquired) if takes_followers else ()
        assert not (reply.acquired and self.model.is_full), "more than may be acquired"
        for first, last, deliveries in reply.acquired:
            given = first, last, deliveries, member, until_ms, self.now_ms
            self.model.acquire(*given, together)
        acquired = sum(last - first + 1 for first, last, _ in reply.acquired)
        assert acquired <= records_max or not is_strict
        if not acquired:
            self.check_that_nothing_was_there()

    def attempt(self) -> None:
        """A receive that is repeated gets the same, and nothing of it is counted again."""
        self.attempts += 1
        member = f"attempt-{self.attempts}"
        if not self.claim(member):
            return
        within = sorted(self.ask(PeekCommand(GROUP, self.log_end, 3)).ranges)
        asked = AcquireCommand(GROUP, member, within, 3, True, is_attempt=True)
        reply = self.ask(asked)
        for first, last, deliveries in reply.acquired:
            until_ms = self.now_ms + self.config.lock_ms
            self.model.acquire(first, last, deliveries, member, until_ms, self.now_ms)

    def repeat(self) -> None:
        member = f"attempt-{self.rng.randrange(max(self.attempts - 3, 0), self.attempts + 1)}"
        reply = self.ask(RepeatCommand(GROUP, member))
        assert reply.error is None
        got = [(n, count) for first, last, count in reply.acquired for n in range(first, last + 1)]
        assert got == self.model.held_by(member, self.now_ms)
        for offset, _ in got:
            self.model.records[offset].at_ms = self.now_ms + self.config.lock_ms
        for other in MEMBERS:
            assert not self.ask(RepeatCommand(GROUP, other)).acquired, "it was no attempt"

    def end_attempt(self) -> None:
        """Its member settles what it holds, and later repeats that."""
        member = f"attempt-{self.attempts}"
        for offset in self.model.held(member, self.now_ms):
            settlement = Settlement(offset, offset, ACCEPT)
            assert self.ask(SettleCommand(GROUP, member, [settlement])).errors == [None]
            self.model.end(offset, ACCEPT, self.now_ms)
            self.model.finish(offset)

    def learn(self, rows_from: int) -> None:
        rows_end = min(self.log_end, rows_from + self.rng.randrange(1, 40))
        rows = [self.row(n) for n in range(rows_from, rows_end)]
        self.ask(LearnCommand(GROUP, rows_from, rows, rows_end))
        self.model.learn(rows_from, rows_end, self.now_ms)

    def check_priorities(self, acquired, records_max: int) -> None:
        """Those that come first are delivered, unless one of them is suspected."""
        if not self.config.needs_rows:
            return
        could_be = self.model.deliverable(self.rows_end, self.now_ms)
        suspect = max(2, -(-self.config.delivery_count_max // 2))
        if all(self.model.record(offset).deliveries < suspect for offset in could_be):
            expected = self.model.by_priority(could_be)[:records_max]
            assert numbers(acquired) == sorted(expected), "others come first"

    def check_chains(self, acquired, known, records_max: int) -> None:
        """Heads in their order, each followed by what may come with it."""
        if not self.config.needs_rows:
            return
        model = self.model
        heads = model.by_priority(model.deliverable(self.rows_end, self.now_ms))
        expected = [n for head in heads for n in model.chain(head, known, self.now_ms)]
        suspect = max(2, -(-self.config.delivery_count_max // 2))
        if not self.config.is_ordered:
            expected = heads
        if all(model.record(offset).deliveries < suspect for offset in expected):
            assert numbers(acquired) == sorted(expected[:records_max]), "others come first"

    def change_filter(self) -> None:
        self.config = replace(self.config, filter_tags=self.rng.choice(["", "x", "y"]))
        self.model.config = self.config
        self.ask(OpenShareGroupCommand(GROUP, 0, self.config))
        self.tick_if_due()  # a wait may have ended while the record's row was not known

    def park(self) -> None:
        key = self.rng.randrange(4)
        reply = self.ask(ParkKeyCommand(GROUP, b"key-%d" % key, key))
        assert (reply.error is None) == self.config.is_ordered
        if self.config.is_ordered:
            self.model.parked.add(key)

    def release_key(self) -> None:
        key = self.rng.randrange(4)
        reply = self.ask(ReleaseKeyCommand(GROUP, b"key-%d" % key))
        assert (reply.error is None) == (key in self.model.parked)
        self.model.parked.discard(key)
        self.tick_if_due()  # a wait may have ended while the key was parked

    def check_that_nothing_was_there(self) -> None:
        group = self.machine.groups[GROUP]
        keyed = group.keyed
        end = group.window.end if keyed is None else keyed.rows_end
        if self.model.is_full:  # the limit was lowered while more were available
            return
        assert not self.model.deliverable(end, self.now_ms), "a record that may come does not"
        if keyed is None and end < self.log_end:
            assert not group.room(), "there is room, and new records do not come"

    def settle(self) -> None:
        member = self.rng.choice(MEMBERS)
        held = self.model.held(member, self.now_ms)
        if not held:
            return
        chosen = sorted(self.rng.sample(held, self.rng.randrange(1, len(held) + 1)))
        settlements = [self.settlement(offset) for offset in chosen]
        if self.rng.random() < 0.3:  # as a range where they are one
            first = held[0]
            last = first
            while last + 1 in held:
                last += 1
            settlements = [self.settlement(first, last)]
        reply = self.ask(SettleCommand(GROUP, member, settlements))
        assert reply.errors == [None] * len(settlements)
        for settlement in settlements:
            for offset in range(settlement.first, settlement.last + 1):
                if settlement.kind != RENEW:
                    self.model.end(offset, settlement.kind, self.now_ms)
                self.apply_to_model(offset, settlement)

    def release_first(self) -> None:
        """Others of its key may still be in flight, and then it must wait for them."""
        member = self.rng.choice(MEMBERS)
        held = self.model.held(member, self.now_ms)
        if not held:
            return
        settlement = Settlement(held[0], held[0], RELEASE, 0)
        assert self.ask(SettleCommand(GROUP, member, [settlement])).errors == [None]
        self.model.end(held[0], RELEASE, self.now_ms)
        self.apply_to_model(held[0], settlement)
        self.check()
        self.acquire()

    def settlement(self, first: int, last: int | None = None) -> Settlement:
        kind = self.rng.choice([GAP, ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW])
        delay_ms = self.rng.choice([-1, 0, 25]) if kind == RELEASE else -1
        return Settlement(first, first if last is None else last, kind, delay_ms)

    def apply_to_model(self, offset: int, settlement: Settlement) -> None:
        model = self.model
        match settlement.kind:
            case 0 | 1:
                model.finish(offset)
            case 2:
                model.release(offset, self.now_ms, settlement.delay_ms)
            case 3:
                model.give_up(offset)
            case 4:
                model.records[offset].at_ms = self.now_ms + self.config.lock_ms

    def settle_what_is_not_held(self) -> None:
        offset = self.rng.randrange(self.log_end + 2)
        member = self.rng.choice(MEMBERS)
        record = self.model.records.get(offset)
        window = self.machine.groups[GROUP].window
        if offset in self.model.held(member, self.now_ms) or offset < window.start:
            return
        reply = self.ask(SettleCommand(GROUP, member, [Settlement(offset, offset, ACCEPT)]))
        assert reply.errors[0] is not None, f"{offset} ({record}) was taken from {member}"

    def settle_again(self) -> None:
        """A settlement by one delivery is distinguished from that by another, and from a lost
        lock."""
        model, known = self.model, [*self.model.ended]
        if not known:
            return
        member, offset = self.rng.choice(known)
        if offset in model.held(member, self.now_ms):
            return
        kind = self.rng.choice([ACCEPT, RELEASE, REJECT])
        record, how = model.record(offset), model.how(member, offset, self.now_ms)
        settlements = [Settlement(offset, offset, kind)]
        reply = self.ask(SettleCommand(GROUP, member, settlements, is_atomic=False))
        found = type(reply.errors[0])
        if how == kind:
            assert found is DeliverySettled
        elif how == LOCK_EXPIRED:
            assert found is DeliveryExpired
        elif record.state in {FINISHED, ARCHIVING}:
            assert found is DeliveryFinished
        elif record.state == ACQUIRED and record.owner != member:
            assert found is DeliveryTaken
        else:
            assert found in {DeliveryLost, DeliveryExpired}

    def leave(self) -> None:
        member = self.rng.choice(MEMBERS)
        self.ask(ReleaseMemberCommand(GROUP, member))
        for offset, record in self.model.records.items():
            if record.state == ACQUIRED and record.owner == member:
                self.model.release(offset, self.now_ms)
        self.model.end_claim(member)

    def trim(self) -> None:
        self.log_start = self.rng.randrange(self.log_start, self.log_end + 1)
        self.ask(LogStartCommand(self.log_start))
        self.model.move_log_start(self.log_start)

    def copy_dead_letters(self) -> None:
        for first, last in self.letters:
            self.ask(DeadLetteredCommand(GROUP, first, last))
            for offset in range(first, last + 1):
                if self.model.record(offset).state == ARCHIVING:
                    self.model.finish(offset)
        self.letters.clear()

    def crash(self) -> None:
        if self.rng.random() < 0.5:  # a snapshot takes the journal's place
            self.journal = [self.machine.encode(r) for r in self.machine.state_records()]
        self.machine = ShareMachine()
        replay(self.machine, self.journal)
        self.letters.clear()
        self.model.crash()
        self.ask(ShareLoadedCommand())
        self.ask(OpenShareGroupCommand(GROUP, 0, self.config))
        self.tick_if_due()

    def step(self) -> None:
        steps = [self.produce, self.pass_time, self.acquire, self.settle]
        rare = [
            self.settle_what_is_not_held,
            self.settle_again,
            self.settle_again,
            self.release_first,
            self.release_first,
            self.attempt,
            self.repeat,
            self.end_attempt,
            self.leave,
            self.trim,
            self.copy_dead_letters,
            self.crash,
            self.change_filter,
            self.park,
            self.release_key,
        ]
        self.rng.choice(steps * 4 + rare)()
        self.check()

    def check(self) -> None:
        """The window holds what the model does, and its figures are right."""
        window = self.machine.groups[GROUP].window
        reached = window.start
        for run in window:
            assert run.first == reached, "runs cover the window"
            reached = run.last + 1
            for offset in range(run.first, run.last + 1):
                record = self.model.record(offset)
                is_finished = record.state == FINISHED
                assert run.is_terminal == is_finished, f"{offset}: {run} {record}"
                if not is_finished:
                    assert run.count == record.deliveries, f"{offset}: {run} {record}"
                    assert (run.state == 1) == (record.state == ACQUIRED), f"{offset}: {run}"
        assert reached == window.end
        for offset in range(self.model.start, window.start):
            assert self.model.record(offset).state == FINISHED, f"{offset} was passed over"
        acquired = sum(r.state == ACQUIRED for r in self.model.records.values())
        assert window.acquired_records == acquired
        owners = {r.owner for r in self.model.records.values() if r.state == ACQUIRED}
        assert len(owners) <= 1 or not self.config.is_sticky, f"{owners} have the partition"
        listed = [one.key for one in self.ask(ListParkedCommand(GROUP)).keys]
        assert listed == [b"key-%d" % key for key in sorted(self.model.parked)]
        described = self.ask(DescribeCommand()).groups[0]
        assert described.acquired_records == acquired


def play(seed: int) -> None:
    rig = ModelledShares(seed)
    for _ in range(STEPS):
        rig.step()
    finish(rig)


def finish(rig: ModelledShares) -> None:
    """Whatever happened, patient consumers come to the end of the log."""
    for key in sorted(rig.model.parked):
        assert rig.ask(ReleaseKeyCommand(GROUP, b"key-%d" % key)).error is None
    rig.model.parked.clear()
    rig.tick_if_due()
    for _ in range(20_000):
        rig.copy_dead_letters()
        rig.acquire()
        for member in MEMBERS:
            held = rig.model.held(member, rig.now_ms)
            settlements = [Settlement(offset, offset, ACCEPT) for offset in held]
            if settlements:
                assert rig.ask(SettleCommand(GROUP, member, settlements)).errors[0] is None
            for offset in held:
                rig.model.finish(offset)
        rig.copy_dead_letters()
        if rig.machine.groups[GROUP].window.start >= rig.log_end:
            return
        rig.pass_time()
    raise AssertionError("the group did not come to the end of the log")


@pytest.mark.parametrize("block", range(4))
def test_share_groups_do_what_the_model_does(block):
    for seed in range(block * HISTORIES // 4, (block + 1) * HISTORIES // 4):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.long
def test_ten_thousand_histories_do_what_the_model_does():
    for seed in range(100_000, 110_000):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
