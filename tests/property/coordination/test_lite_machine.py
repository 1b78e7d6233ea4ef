"""Random histories of lite topics against a plain model, with crashes, snapshots and expiry."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.kit.machines import carry_out, replay

from headrace.coordination.shares.commands import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    UNDELIVERED,
    DeadLetteredCommand,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    RepeatCommand,
    SettleCommand,
    Settlement,
    ShareLoadedCommand,
    ShareTickCommand,
)
from headrace.coordination.shares.config import EXCLUSIVE, SHARED, ShareConfig
from headrace.coordination.shares.lite_commands import (
    ADD,
    LEAVE,
    REMOVE,
    SET,
    LearnLiteCommand,
    LiteAcquireCommand,
    LiteCaughtUpCommand,
    LitePeekCommand,
    LiteRow,
    LiteSyncCommand,
    OpenLiteCommand,
)
from headrace.coordination.shares.lite_group import TOGETHER_MAX
from headrace.coordination.shares.lite_machine import LiteMachine
from headrace.errors import DeliverySettled

GROUPS = ("g", "h")
CLIENTS = ("one", "two", "three")
NAMES = ("a", "b", "c", "d")
HISTORIES = 80
STEPS = 120
SESSION_MS = 5_000
EXPIRATION_MS = 20_000


class ModelledLiteTopics:
    """A machine with its journal, and what a group may expect of it, record by record."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.config = ShareConfig(
            lock_ms=rng.choice([50, 1_000]),
            delivery_count_max=rng.choice([2, 5, 50]),
            backoff_ms=rng.choice([(), (10,), (10, 100)]),
            has_dead_letters=rng.random() < 0.5,
            subscription=rng.choice([SHARED, SHARED, EXCLUSIVE]),
        )
        self.expiration_ms = rng.choice([-1, EXPIRATION_MS])
        self.now_ms = 1_000
        self.log: list[tuple[str, int]] = []
        self.start = 0
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.finished: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.counts: dict[tuple[str, int], int] = {}
        self.held: dict[tuple[str, int], str] = {}
        self.expired: set[int] = set()
        self.letters: list[tuple[str, int]] = []
        self.members = 0
        self.load()

    # --- the machine ---------------------------------------------------------------------------

    def load(self) -> None:
        """As after a crash: everything that was not stored is forgotten."""
        self.machine = LiteMachine()
        replay(self.machine, self.journal)
        self.held.clear()
        self.letters.clear()
        self.submit(ShareLoadedCommand())
        for group in GROUPS:
            self.submit(OpenLiteCommand(group, self.config, self.expiration_ms))

    def snapshot(self) -> None:
        records = self.machine.state_records()
        self.journal = [self.machine.encode(record) for record in records]
        assert None not in self.journal

    def submit(self, command):
        decision = carry_out(self.machine, command, self.now_ms, self.journal)
        for record in decision.records:
            stored = self.machine.encode(record)
            assert stored is None or self.machine.decode(*stored) == record
            if type(record).__name__ == "LiteExpired" and record.end is not None:
                self.note_expired(record)
        for effect in decision.effects:
            self.note_given_up(effect)
        assert decision.reply.error is None or not decision.records
        return decision.reply

    def note_expired(self, record) -> None:
        named = [at for at, (name, _) in enumerate(self.log) if name == record.name]
        assert self.log[named[-1]][1] + EXPIRATION_MS <= self.now_ms
        assert not any(at in named for _group, at in self.held)
        self.expired |= {at for at in named if at < record.end}

    def note_given_up(self, effect) -> None:
        key = (effect.group_id, effect.first)
        self.held.pop(key, None)
        self.counts[key] = effect.deliveries  # after a crash, it is delivered once more
        if effect.has_copy:
            self.letters.append(key)
        else:
            self.finished[effect.group_id].add(effect.first)

    # --- steps ---------------------------------------------------------------------------------

    def step(self) -> None:
        steps = [
            *(self.send, self.send, self.learn, self.sync, self.sync, self.acquire, self.acquire),
            *(self.acquire, self.settle, self.settle, self.settle, self.pass_time, self.copy),
            self.check_lag,
        ]
        rare = [self.load, self.snapshot, self.release, self.repeat, self.trim, self.remove]
        self.rng.choice(steps if self.rng.random() < 0.95 else rare)()

    def send(self) -> None:
        for _ in range(self.rng.choice([1, 1, 3, 150 if self.rng.random() < 0.05 else 2])):
            self.log.append((self.rng.choice(NAMES), self.now_ms))

    def learn(self) -> None:
        begin = self.machine.index.end
        end = self.rng.randint(begin, len(self.log))
        rows = [LiteRow(at, *self.log[at]) for at in range(max(begin, self.start), end)]
        self.submit(LearnLiteCommand(begin, rows, end))
        self.submit(LearnLiteCommand(max(begin - 1, 0), rows, end))  # is ignored
        if end == len(self.log):
            self.submit(LiteCaughtUpCommand(self.start, len(self.log)))

    def learn_all(self) -> None:
        while self.machine.index.end < len(self.log):
            self.learn()

    def trim(self) -> None:
        """Retention deletes the oldest records."""
        self.start = self.rng.randint(self.start, len(self.log))
        self.learn_all()
        self.submit(LiteCaughtUpCommand(self.start, len(self.log)))

    def sync(self) -> None:
        names = self.rng.sample(NAMES, self.rng.randint(0, 3))
        action = self.rng.choice([ADD, ADD, SET, REMOVE, LEAVE])
        group, client = self.rng.choice(GROUPS), self.rng.choice(CLIENTS)
        before, stay = set(self.names(group, client)), self.rng.choice(["", "s", "t"])
        others = set[str]()
        if stay and before:
            named = self.machine.groups[group].clients[client].names.items()
            others = {name for name, of in named if of != stay}
        reply = self.submit(LiteSyncCommand(group, client, action, names, SESSION_MS, stay))
        after = {
            ADD: before | {*names},
            SET: {*names},
            REMOVE: before - {*names},
            LEAVE: others,
        }[action]
        assert set(self.names(group, client)) == after
        assert self.config.subscription == EXCLUSIVE or not reply.displaced
        for other, name in reply.displaced:
            assert name not in self.names(group, other)

    def names(self, group, client):
        found = self.machine.groups[group].clients.get(client)
        return [] if found is None else list(found.names)

    def acquire(self) -> None:
        group, client = self.rng.choice(GROUPS), self.rng.choice(CLIENTS)
        peeked = self.submit(LitePeekCommand(group, client, self.rng.choice([1, 3, 200])))
        read = peeked.offsets
        if self.rng.random() < 0.2:
            read = self.rng.sample(read, len(read) // 2)
        if self.rng.random() < 0.1:
            self.pass_time()
        self.members += 1
        member = f"m{self.members}"
        is_attempt = self.rng.random() < 0.3
        command = LiteAcquireCommand(group, client, member, read, 200, -1, is_attempt)
        acquired = self.submit(command).acquired
        self.check_delivery(group, client, [first for first, _last, _count in acquired], read)
        for first, last, count in acquired:
            assert first == last
            self.held[group, first] = member
            assert count == self.counts.get((group, first), 0) + 1, first

    def check_delivery(self, group, client, offsets, read) -> None:
        """In order for each lite topic, each to one client, nothing that is finished."""
        assert {*offsets} <= {*read}
        subscribed = self.names(group, client)
        for name in {self.log[at][0] for at in offsets}:
            assert name in subscribed
            got = [at for at in offsets if self.log[at][0] == name]
            left = self.left(group, name)
            assert got == left[: len(got)], (group, name)
            assert len(got) <= TOGETHER_MAX
            assert not any(one == group and self.log[at][0] == name for one, at in self.held)

    def left(self, group, name):
        without = self.finished[group] | self.expired
        return [
            at
            for at in range(self.start, len(self.log))
            if self.log[at][0] == name and at not in without
        ]

    def check_lag(self) -> None:
        """What a group has left of the lite topics that it knows, once all records are known."""
        self.learn_all()
        while self.machine.index.start < self.start or self.machine.is_trimming:
            self.submit(LiteCaughtUpCommand(self.start, len(self.log)))
        for group in GROUPS:
            machine_group = self.machine.groups[group]
            known = {*machine_group.subscribers, *machine_group.progress}
            left = [at for name in known for at in self.left(group, name)]
            held = [at for one, at in self.held if one == group]
            found = machine_group.describe()
            assert found.records == len(left)
            assert found.first == min(left, default=len(self.log))
            assert found.acquired == len(held)

    def settle(self) -> None:
        if not self.held:
            return
        group, at = self.rng.choice(list(self.held))
        member = self.held[group, at]
        kind = self.rng.choice([ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, UNDELIVERED])
        delay_ms = self.rng.choice([-1, 20])
        command = SettleCommand(group, member, [Settlement(at, at, kind, delay_ms)], False)
        count = self.machine.groups[group].delivering[self.log[at][0]][at].deliveries
        assert self.submit(command).errors == [None]
        if kind != RENEW:
            self.held.pop((group, at), None)
        if kind == ACCEPT:
            self.finished[group].add(at)
            assert isinstance(self.submit(command).errors[0], DeliverySettled)
        elif kind == RELEASE and count < self.config.delivery_count_max:
            self.counts[group, at] = count

    def copy(self) -> None:
        if self.letters:
            group, at = self.letters.pop(self.rng.randrange(len(self.letters)))
            self.submit(DeadLetteredCommand(group, at, at))
            self.finished[group].add(at)

    def release(self) -> None:
        if self.held:
            group, at = self.rng.choice(list(self.held))
            member = self.held[group, at]
            self.end_of(lambda one, _until_ms: one == member)
            self.submit(ReleaseMemberCommand(group, member))

    def remove(self) -> None:
        """A group that is deleted and created again begins at the beginning."""
        group = self.rng.choice(GROUPS)
        self.submit(RemoveGroupCommand(group))
        self.finished[group].clear()
        self.held = {key: member for key, member in self.held.items() if key[0] != group}
        self.counts = {key: count for key, count in self.counts.items() if key[0] != group}
        self.letters = [key for key in self.letters if key[0] != group]
        if self.rng.random() < 0.5:
            self.pass_time()
        self.submit(OpenLiteCommand(group, self.config, self.expiration_ms))

    def repeat(self) -> None:
        if self.held:
            group, at = self.rng.choice(list(self.held))
            member = self.held[group, at]
            acquired = self.submit(RepeatCommand(group, member)).acquired
            mine = [key[1] for key, one in self.held.items() if one == member]
            assert [first for first, _last, _count in acquired] in ([], sorted(mine))

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 30, 1_100, 10_000 if self.rng.random() < 0.1 else 5])
        while True:
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is None or deadline_ms > self.now_ms:
                return
            self.end_of(lambda _one, until_ms: until_ms <= self.now_ms)
            self.submit(ShareTickCommand())

    def end_of(self, has_ended) -> None:
        for group, at in list(self.held):
            one = self.machine.groups[group].delivering[self.log[at][0]][at]
            if has_ended(one.member, one.until_ms):
                del self.held[group, at]
                if one.deliveries < self.config.delivery_count_max:
                    self.counts[group, at] = one.deliveries

    # --- the end -------------------------------------------------------------------------------

    def drain(self) -> None:
        """A client that subscribes to everything gets all that is left, and nothing else."""
        self.learn_all()
        for group in GROUPS:
            for name in NAMES:
                self.submit(LiteSyncCommand(group, "last", ADD, [name], 10**9))
        wanted = {(group, name): self.left(group, name) for group in GROUPS for name in NAMES}
        for _ in range(len(self.log) + 200):
            self.now_ms += 200
            self.end_of(lambda _one, until_ms: until_ms <= self.now_ms)
            while self.letters:
                self.copy()
            self.submit(ShareTickCommand())
            for group in GROUPS:
                peeked = self.submit(LitePeekCommand(group, "last", 1_000)).offsets
                command = LiteAcquireCommand(group, "last", "last", peeked, 1_000)
                offsets = [first for first, _last, _count in self.submit(command).acquired]
                self.check_delivery(group, "last", offsets, peeked)
                settled = [Settlement(at, at, ACCEPT) for at in offsets]
                errors = self.submit(SettleCommand(group, "last", settled, True)).errors
                assert not any(errors)
                self.finished[group].update(offsets)
        for (group, name), offsets in wanted.items():
            missing = {*offsets} - self.finished[group] - self.expired
            assert not missing, (group, name)


@pytest.mark.parametrize("part", range(4))
def test_every_record_of_a_lite_topic_is_delivered_in_order_until_it_is_settled(part):
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        rig = ModelledLiteTopics(seed)
        try:
            for _ in range(STEPS):
                rig.step()
            rig.drain()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_what_has_expired_stays_so_after_a_crash_although_more_was_sent():
    rig = ModelledLiteTopics(0)
    rig.expiration_ms = EXPIRATION_MS
    rig.load()
    rig.log = [("a", rig.now_ms), ("a", rig.now_ms)]
    rig.learn_all()
    rig.submit(LiteSyncCommand("g", "one", ADD, ["a"], SESSION_MS))
    assert rig.submit(LitePeekCommand("g", "one", 10)).offsets == [0, 1]
    rig.now_ms += EXPIRATION_MS
    rig.submit(LiteCaughtUpCommand(0, 2))
    assert rig.submit(LitePeekCommand("g", "one", 10)).offsets == []
    rig.log.append(("a", rig.now_ms))
    for change in (rig.learn_all, rig.snapshot, rig.load):
        change()
    rig.learn_all()
    rig.submit(LiteSyncCommand("g", "one", ADD, ["a"], SESSION_MS))
    assert rig.submit(LitePeekCommand("g", "one", 10)).offsets == [2]


def test_a_time_in_the_future_keeps_no_lite_topic_from_expiring():
    rig = ModelledLiteTopics(0)
    rig.expiration_ms = EXPIRATION_MS
    rig.load()
    rig.log = [("a", rig.now_ms + 10**12), ("b", rig.now_ms), ("c", -1)]
    rig.learn_all()
    rig.log[0] = ("a", rig.now_ms)
    rig.now_ms += EXPIRATION_MS
    assert rig.machine.is_outdated(0, rig.now_ms)
    rig.submit(LiteCaughtUpCommand(0, 3))
    assert not [*rig.machine.index.oldest()]


def test_what_many_lite_topics_need_is_decided_some_at_a_time():
    rig = ModelledLiteTopics(0)
    rig.config = replace(rig.config, lock_ms=1_000, backoff_ms=(), subscription=SHARED)
    groups, count = ("g", "h", "i"), 2_000
    rig.load()
    rig.submit(OpenLiteCommand("i", rig.config))
    rig.log = [(f"n{number}", rig.now_ms) for number in range(count)]
    rig.learn_all()
    rig.machine.validate = lambda: None  # which looks at all of them
    for at, (name, _) in enumerate(rig.log):
        rig.now_ms += at % 3 == 0
        for group in groups:
            rig.submit(LiteSyncCommand(group, "one", ADD, [name], SESSION_MS))
            command = LiteAcquireCommand(group, "one", "one", [at], 1)
            assert rig.submit(command).acquired
    rig.now_ms += 1_000
    decisions = decide_all(rig, ShareTickCommand(), lambda: rig.machine.next_deadline_ms())
    assert len(decisions) > 5
    assert not any(group.delivering for group in rig.machine.groups.values())
    decisions = decide_all(
        rig,
        LiteCaughtUpCommand(count, count),
        lambda: rig.now_ms if rig.machine.is_outdated(count, rig.now_ms) else None,
    )
    assert len(decisions) > 10
    assert (rig.machine.index.start, len(rig.machine.index)) == (count, 0)
    assert not any(group.progress for group in rig.machine.groups.values())
    rig.load()
    assert not any(group.progress for group in rig.machine.groups.values())


def test_the_lag_after_records_of_very_many_lite_topics_were_deleted():
    rig = ModelledLiteTopics(0)
    names = [f"n{number}" for number in range(2_500)]
    rig.log = [(name, rig.now_ms) for name in names + names]
    rig.learn_all()
    rig.submit(LiteSyncCommand("g", "one", ADD, names, SESSION_MS))
    group, half = rig.machine.groups["g"], len(names)
    assert group.describe()[:2] == (0, 2 * half)
    rig.start = half - 1
    rounds = 0
    while rig.machine.is_outdated(rig.start, rig.now_ms):
        rig.submit(LiteCaughtUpCommand(rig.start, len(rig.log)))
        rounds += 1
    assert rounds == 3, "not all of them in one decision"
    assert group.describe()[:2] == (half - 1, half + 1)


def decide_all(rig, command, next_ms):
    """The records of the decisions, each of which is small, until there is nothing left to do."""
    decisions = []
    while (at_ms := next_ms()) is not None and at_ms <= rig.now_ms:
        records = carry_out(rig.machine, command, rig.now_ms, rig.journal).records
        decisions.append(records)
        assert sum(len(getattr(one, "names", "1")) for one in records) <= 2_100
        is_done = rig.machine.index.start == len(rig.log)
        assert not is_done or not len(rig.machine.index), "the start moves last"
    return decisions
