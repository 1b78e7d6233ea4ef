"""Snapshots of share groups in parts, with commands between the parts and a crash at any time."""

from __future__ import annotations

import random

import pytest
from tests.kit.machines import carry_out, replay

from headrace.coordination.shares import share_machine
from headrace.coordination.shares.commands import (
    ACCEPT,
    REJECT,
    RELEASE,
    AcquireCommand,
    LogStartCommand,
    MoveStartCommand,
    OpenShareGroupCommand,
    ParkKeyCommand,
    PeekCommand,
    ReleaseKeyCommand,
    RemoveGroupCommand,
    SettleCommand,
    Settlement,
    ShareTickCommand,
)
from headrace.coordination.shares.config import ShareConfig
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.coordination.shares.window import ACQUIRED, ARCHIVING

GROUPS = ("a", "b", "c", "d", "e")
ORDERED = {"d", "e"}
HISTORIES = 60
STEPS = 80
LOG_END = 60


class History:
    """A machine and its journal, of which a snapshot lets the beginning be dropped."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000
        self.journal: list = []
        self.start = 0
        self.machine = ShareMachine()
        self.is_in_snapshot = False

    def ask(self, command):
        return carry_out(self.machine, command, self.now_ms, self.journal).reply

    def step(self) -> None:
        rng = self.rng
        group = rng.choice(GROUPS)
        offset = rng.randrange(LOG_END)
        key = rng.randrange(4)
        match rng.randrange(16):
            case 0 | 1 | 2:
                config = ShareConfig(lock_ms=50, is_ordered=group in ORDERED)
                self.ask(OpenShareGroupCommand(group, rng.randrange(10), config))
            case 3 | 4 | 5 | 6:
                peeked = self.ask(PeekCommand(group, LOG_END, 5))
                if peeked.error is None:
                    ranges = sorted(peeked.ranges)
                    self.ask(AcquireCommand(group, "m", ranges, 5))
            case 7 | 8 | 9 | 10:
                self.settle(group)
            case 11:
                self.now_ms += rng.choice([1, 60])
                deadline_ms = self.machine.next_deadline_ms()
                if deadline_ms is not None and deadline_ms <= self.now_ms:
                    self.ask(ShareTickCommand())
            case 12:
                if rng.random() < 0.6:
                    self.ask(ParkKeyCommand(group, b"%d" % key, key))
                else:
                    self.ask(ReleaseKeyCommand(group, b"%d" % key))
            case 13:
                moved = rng.random() < 0.5
                self.ask(MoveStartCommand(group, offset) if moved else LogStartCommand(offset // 4))
            case 14:
                if rng.random() < 0.4:
                    self.ask(RemoveGroupCommand(group))
            case 15:
                self.snapshot()
        self.check()

    def settle(self, group_id: str) -> None:
        group = self.machine.groups.get(group_id)
        if group is None:
            return
        held = [run for run in group.window if run.state == ACQUIRED]
        if held:
            run = self.rng.choice(held)
            kind = self.rng.choice([ACCEPT, RELEASE, REJECT])
            self.ask(SettleCommand(group_id, "m", [Settlement(run.first, run.first, kind)]))

    def snapshot(self) -> None:
        """As a shard writes it; other commands are answered between the parts."""
        if self.is_in_snapshot:
            return
        self.is_in_snapshot = True
        needed_from = len(self.journal)
        for part in self.machine.state_parts():
            pairs = [self.machine.encode(record) for record in part]
            self.journal += [pair for pair in pairs if pair is not None]
            for _ in range(self.rng.choice([0, 1, 3])):
                self.step()
        if self.rng.random() < 0.8:
            self.start = needed_from
        self.is_in_snapshot = False

    def check(self) -> None:
        """A crash at this point finds what the machine knows, but for locks."""
        replayed = ShareMachine()
        replay(replayed, self.journal[self.start :])
        assert picture(replayed) == picture(self.machine)
        assert replayed.skipped_count == 0


def picture(machine: ShareMachine):
    found = {}
    for group_id, group in machine.groups.items():
        finished = [n for n in range(LOG_END) if is_finished(group, n)]
        archiving = [n for n in range(LOG_END) if state_of(group, n) == ARCHIVING]
        found[group_id] = group.number, finished, archiving, sorted(group.parked)
    return found


def state_of(group, offset: int) -> int:
    run = group.window.run_at(offset)
    return -1 if run is None else run.state


def is_finished(group, offset: int) -> bool:
    run = group.window.run_at(offset)
    return offset < group.window.start if run is None else run.is_terminal


def run(seed: int) -> None:
    history = History(seed)
    try:
        for _ in range(STEPS):
            history.step()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_a_snapshot_in_parts_rebuilds_every_group(monkeypatch):
    monkeypatch.setattr(share_machine, "PART_SIZE", 1)
    for seed in range(HISTORIES):
        run(seed)


def _parts_are_of_one_moment(monkeypatch):
    parts = ShareMachine.state_parts
    monkeypatch.setattr(ShareMachine, "state_parts", lambda self: iter(list(parts(self))))


def _a_group_lies_in_several_parts(monkeypatch):
    parts = ShareMachine.state_parts
    monkeypatch.setattr(
        ShareMachine, "state_parts", lambda self: ([one] for part in parts(self) for one in part)
    )


@pytest.mark.parametrize(
    "plant",
    [_parts_are_of_one_moment, _a_group_lies_in_several_parts],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    monkeypatch.setattr(share_machine, "PART_SIZE", 1)
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail(f"not found in {HISTORIES} histories")
