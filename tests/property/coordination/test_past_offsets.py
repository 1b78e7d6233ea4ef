"""Offsets at earlier times under random histories, snapshots and crashes, against a plain model.

The model has what was asked for, with times, and is never trimmed. What is said to be known is what
the model has; unknown is only what a trimmed log cannot tell.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Self
from uuid import UUID

import pytest
from tests.property.coordination.test_open_commits import PLACES, STEPS, History

from headrace.coordination.groups import group_state, past_offsets
from headrace.coordination.groups.past_offsets import (
    COMMITTED,
    IN_TRANSACTION,
    NONE,
    TOO_LARGE,
    TRIMMED,
    PastOffsets,
)
from headrace.coordination.kit import pieces
from headrace.coordination.kit.machine import TransactionEnded

HISTORIES = 400
NO_TRANSACTIONS = (0, 1, 2, 9, 10, 11)
TOPIC_ID = UUID(int=7)


class Plain(random.Random):
    """Chooses no step of a transaction."""

    def randrange(self, start: int, *more: Any) -> int:
        return self.choice(NO_TRANSACTIONS) if start == 12 else super().randrange(start, *more)


class Stamped(list):
    """Knows when each entry was added."""

    def __init__(self, history: Timed) -> None:
        self.history = history
        self.times: list[int] = []

    def append(self, entry: Any) -> None:
        super().append(entry)
        self.times.append(self.history.now_ms)

    def __iadd__(self, entries: Any) -> Self:
        for entry in entries:
            self.append(entry)
        return self


class Timed(History):
    """A history that can be looked back on."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.log, self.events = Stamped(self), Stamped(self)
        if seed % 2:
            self.rng = Plain(seed)

    def longest_open_ms(self) -> int:
        begun: dict[int, int] = {}
        longest = 0
        for (kind, what), at_ms in zip(self.events, self.events.times, strict=True):
            if kind == "pending":
                begun.setdefault(what[0], at_ms)
            elif kind == "end":
                longest = max(longest, at_ms - begun.pop(what[0], at_ms))
        return max([longest, *(self.now_ms - one for one in begun.values())])

    def model_at(self, at_ms: int) -> dict[Any, int]:
        events = self.events
        timed = zip(events, events.times, strict=True)
        self.events = [one for one, added_ms in timed if added_ms <= at_ms]
        in_force, _pending = self.model()
        self.events = events
        return in_force

    def past(self, topic: str, at_ms: int, count_max: int) -> list[Any]:
        past = PastOffsets(topic, TOPIC_ID, at_ms, self.longest_open_ms() + 1)
        entries = list(zip(self.log, self.log.times, strict=True))[self.start :]
        for entry, written_ms in entries[:count_max]:
            if isinstance(entry, TransactionEnded):
                past.end(entry, written_ms)
            elif len(entry) == 3:
                past.take_pending(*entry, written_ms)
            else:
                past.take([entry], written_ms)
        return past.found(is_whole=self.start == 0, is_cut=count_max < len(entries))


def run(seed: int, told: Counter[str]) -> None:
    history = Timed(seed)
    for _ in range(STEPS):
        history.now_ms += history.rng.choice([0, 0, 5])
        history.step()
    for _ in range(10):
        at_ms = history.rng.randrange(history.now_ms + 2)
        count_max = history.rng.choice([len(history.log), len(history.log) // 2])
        in_force = history.model_at(at_ms)
        for topic in {topic for topic, _number in PLACES}:
            for one in history.past(topic, at_ms, count_max):
                told[one.state] += 1
                expected = in_force.get((one.group, (topic, one.partition)), -1)
                if one.state in {COMMITTED, NONE}:
                    assert one.offset == expected, (seed, at_ms, one, expected)
                elif one.state != TOO_LARGE:
                    assert history.start > 0, (seed, at_ms, one)


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch):
    monkeypatch.setattr(group_state, "PART_RECORDS", 1)
    monkeypatch.setattr(pieces, "PIECE_KEYS", 2)


def test_what_is_known_of_an_earlier_time_is_what_was_committed_then():
    told: Counter[str] = Counter()
    for seed in range(HISTORIES):
        run(seed, told)
    for state in (COMMITTED, NONE, TRIMMED, IN_TRANSACTION, TOO_LARGE):
        assert told[state] > 50, told


def _open_transactions_count(monkeypatch):
    monkeypatch.setattr(Timed, "longest_open_ms", lambda _self: -1_000)


def _a_trimmed_log_is_whole(monkeypatch):
    monkeypatch.setattr(PastOffsets, "found", _whole(PastOffsets.found))


def _whole(found: Any) -> Any:
    return lambda self, *, is_whole, is_cut: found(self, is_whole=True, is_cut=is_cut)


def _a_copy_is_a_commit_of_its_time(monkeypatch):
    monkeypatch.setattr(PastOffsets, "_is_before", lambda _self, _written_ms: True)


def _deletions_do_not_count(monkeypatch):
    monkeypatch.setattr(past_offsets, "OffsetRemoved", UUID)


@pytest.mark.parametrize(
    "plant",
    [
        _open_transactions_count,
        _a_trimmed_log_is_whole,
        _a_copy_is_a_commit_of_its_time,
        _deletions_do_not_count,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    for seed in range(HISTORIES):
        try:
            run(seed, Counter())
        except AssertionError:
            return
    pytest.fail(f"not found in {HISTORIES} histories")
