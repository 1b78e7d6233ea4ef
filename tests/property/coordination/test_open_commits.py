"""Offsets in transactions under random histories, snapshots and crashes, against a plain model.

The model is the definition: of all commits of a partition that are in force, the last in the log
counts; a tombstone removes all that comes before it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.coordination.groups import group_machine, group_state, open_commits
from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    FetchOffsetsCommand,
    OffsetToCommit,
    TransactionalCommitCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.host_commands import WriteMarkerCommand
from headrace.coordination.kit import pieces
from headrace.coordination.kit.host_commands import LoadedCommand
from headrace.coordination.kit.machine import EndsTransaction, InTransaction, TransactionEnded
from headrace.errors import OffsetCommitUnstable

HISTORIES = 1_000
STEPS = 50
PRODUCERS = (1, 2, 3)
GROUPS = ("g", "h")
PLACES = (("t", 0), ("t", 1))


class History:
    """A machine over a log in a list, and the model beside it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[Any] = []
        self.start = 0
        self.is_in_snapshot = False
        self.now_ms = 0
        self.machine = self.loaded()
        self.events: list[tuple[str, Any]] = []
        """What was asked for, in order: the model's log, which is never trimmed."""

    def loaded(self) -> GroupMachine:
        machine = GroupMachine(GroupConfig())
        for entry in self.log[self.start :]:
            match entry:
                case TransactionEnded():
                    record = machine.ended(entry)
                case (InTransaction() as transaction, key, value):
                    record = machine.decode_pending(transaction, key, value)
                case (key, value):
                    record = machine.decode(key, value)
            assert record is not None
            machine.apply(record)
        for record in machine.decide(LoadedCommand(), self.now_ms).records:
            machine.apply(record)
        return machine

    def send(self, command: Any) -> Any:
        self.now_ms += 1
        decision = self.machine.decide(command, self.now_ms)
        for record in decision.records:
            if isinstance(decision.batch, EndsTransaction):
                self.log.append(record)
            elif (pair := self.machine.encode(record)) is not None:
                self.log.append((decision.batch, *pair) if decision.batch else pair)
            self.machine.apply(record)
        return decision.reply

    # --- what may happen ---------------------------------------------------------------------

    def step(self) -> None:
        group = self.rng.choice(GROUPS)
        place = self.rng.choice(PLACES)
        producer = self.rng.choice(PRODUCERS)
        offset = self.rng.randrange(100)
        wanted = [OffsetToCommit(*place, offset)]
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.send(CommitCommand(group, -1, "", None, wanted))
                self.events.append(("plain", (group, place, offset)))
            case 3 | 4 | 5 | 6:
                self.send(TransactionalCommitCommand(group, producer, 0, -1, "", None, wanted))
                self.events.append(("pending", (producer, group, place, offset)))
            case 7 | 8:
                is_commit = self.rng.random() < 0.7
                self.send(WriteMarkerCommand(EndsTransaction(producer, 0, 0, is_commit, 1)))
                self.events.append(("end", (producer, is_commit)))
            case 9:
                if self.rng.random() < 0.5:
                    reply = self.send(DeleteOffsetsCommand(group, [place]))
                    places = [place] if reply.error is None else []
                else:
                    self.send(DeleteGroupsCommand([group]))
                    places = list(PLACES)
                self.events += [("removed", (group, place)) for place in places]
            case 10:
                self.snapshot()
            case 11:
                before = self.picture()
                self.machine = self.loaded()
                assert self.picture() == before, "replay and live state differ"
        self.check()

    def snapshot(self) -> None:
        """As a shard does it: in parts, while commands go on; a crash may come in the middle."""
        if self.is_in_snapshot:
            return
        needed_from = min(len(self.log), self.stable_offset())
        machine = self.machine
        self.is_in_snapshot = True
        for part in machine.state_parts():
            pairs = [machine.encode(record) for record in part]
            self.log += [pair for pair in pairs if pair is not None]
            for _ in range(self.rng.choice([0, 0, 1, 3])):
                self.step()
            if self.rng.random() < 0.1:
                self.machine = self.loaded()
            if self.machine is not machine:
                break
        else:
            for _ in range(self.rng.choice([0, 2])):
                self.step()
            if self.rng.random() < 0.8:
                self.start = max(self.start, needed_from)
        self.is_in_snapshot = False

    def stable_offset(self) -> int:
        """The first record of the first open transaction."""
        first: dict[int, int] = {}
        for at, entry in enumerate(self.log):
            if isinstance(entry, TransactionEnded):
                first.pop(entry.producer_id, None)
            elif len(entry) == 3:
                first.setdefault(entry[0].producer_id, at)
        return min(first.values(), default=len(self.log))

    # --- judging -----------------------------------------------------------------------------

    def picture(self) -> Any:
        return {
            group_id: (dict(group.offsets), group.open_commits.picture())
            for group_id, group in self.machine.groups.items()
        }

    def model(self) -> tuple[dict[Any, int], set[Any]]:
        """(offsets in force, partitions with an open commit), by definition."""
        ended: dict[int, bool] = {}
        pending: set[Any] = set()
        removed: set[Any] = set()
        in_force: dict[Any, int] = {}
        for kind, what in reversed(self.events):
            if kind == "end":
                ended[what[0]] = what[1]
                continue
            if kind == "removed":
                removed.add(what)
                continue
            key = what[-3], what[-2]
            if key in removed:
                continue
            if kind == "pending" and what[0] not in ended:
                pending.add(key)
            elif (kind == "plain" or ended[what[0]]) and key not in in_force:
                in_force[key] = what[-1]
        return in_force, pending

    def check(self) -> None:
        in_force, pending = self.model()
        for group in GROUPS:
            command = FetchOffsetsCommand(group, list(PLACES))
            found = self.machine.decide(command, self.now_ms).reply
            offsets = {(group, (o.topic, o.partition)): o.offset for o in found.offsets}
            expected = {(group, place): in_force.get((group, place), -1) for place in PLACES}
            assert offsets == expected, f"{offsets} instead of {expected}"
            command.require_stable = True
            stable = self.machine.decide(command, self.now_ms).reply
            unstable = {
                (group, (o.topic, o.partition))
                for o in stable.offsets
                if isinstance(o.error, OffsetCommitUnstable)
            }
            assert unstable == {key for key in pending if key[0] == group}


def run(seed: int) -> None:
    history = History(seed)
    try:
        for _ in range(STEPS):
            history.step()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def test_the_last_commit_in_the_log_counts_over_snapshots_and_crashes(monkeypatch):
    monkeypatch.setattr(group_state, "PART_RECORDS", 1)
    monkeypatch.setattr(pieces, "PIECE_KEYS", 2)
    for seed in range(HISTORIES):
        run(seed)


def _marker_order_counts(monkeypatch):
    monkeypatch.setattr(open_commits.OpenCommits, "supersede", lambda *_: None)


def _a_snapshot_counts_as_a_commit(monkeypatch):
    def planted(self):
        yield [stored for group in self.groups.values() for stored in group.offsets.values()]

    monkeypatch.setattr(group_machine.GroupMachine, "state_parts", planted)


def _open_transactions_are_trimmed(monkeypatch):
    monkeypatch.setattr(History, "stable_offset", lambda self: len(self.log))


def _a_tombstone_leaves_open_commits(monkeypatch):
    monkeypatch.setattr(open_commits.OpenCommits, "remove", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    [
        _marker_order_counts,
        _a_snapshot_counts_as_a_commit,
        _open_transactions_are_trimmed,
        _a_tombstone_leaves_open_commits,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail(f"not found in {HISTORIES} histories")
