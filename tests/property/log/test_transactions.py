"""Transactions of one partition against a plain model: what is stable, committed and aborted.

Producers send, commit and abort in both transaction versions while appends fail, ledgers roll, lose
their footers and are trimmed, and the log is read again or taken over. The model keeps a list of
batches and works everything out from it. Bugs that are planted must be found.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.log_rig import LogHarness, forget_before, rig, settle
from tests.unit.log.transaction_rig import Producer

from headrace.log import segment
from headrace.log.aborted_index import AbortedIndex
from headrace.log.log_config import LogConfig
from headrace.log.producer_state import RETRIES_MS, ProducerState
from headrace.log.segment import Segment
from headrace.log.visibility import READ_COMMITTED, Visibility
from headrace.records.batch import iterate_headers
from headrace.runtime import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

PRODUCERS = (1, 2, 3, 4)
OPERATIONS = (
    *("send",) * 6,
    *("plain",) * 2,
    *("commit", "abort") * 2,
    *("burst", "burst", "roll", "reload", "footer", "unload", "trim", "expire", "take"),
)


@dataclass
class Batch:
    """What one batch of the log is."""

    base: int
    last: int
    transaction: int | None = None
    """The transaction that it belongs to."""
    is_marker: bool = False


@dataclass
class Transaction:
    producer: int
    first: int
    is_committed: bool | None = None
    """None while it is open."""
    marker: int = -1


@dataclass
class Model:
    """The acknowledged batches, and the producers' next epochs and sequences."""

    batches: list[Batch] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """Producer -> its open transaction."""
    clients: dict[int, tuple[int, int]] = field(
        default_factory=lambda: dict.fromkeys(PRODUCERS, (0, 0))
    )
    """Producer -> (epoch, sequence)."""
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    @property
    def stable(self) -> int:
        first = min((self.transactions[at].first for at in self.open.values()), default=self.end)
        return max(first, self.start)

    @property
    def stable_at_most(self) -> int:
        """The same if transactions are known by the records alone that trims have left."""
        left = [
            batch.base
            for batch in self.batches
            if batch.base >= self.start and batch.transaction in self.open.values()
        ]
        return min(left, default=self.end)

    def send(self, producer: int | None, base: int, count: int) -> None:
        batch = Batch(base, base + count - 1)
        if producer is not None:
            if producer not in self.open:
                self.open[producer] = len(self.transactions)
                self.transactions.append(Transaction(producer, base))
            batch.transaction = self.open[producer]
        self.batches.append(batch)

    def finish(self, producer: int, marker: int, *, is_commit: bool) -> None:
        at = self.open.pop(producer, None)
        if at is not None:
            self.transactions[at].is_committed, self.transactions[at].marker = is_commit, marker
        if marker >= 0:
            self.batches.append(Batch(marker, marker, is_marker=True))

    def committed(self, offset: int, stable: int) -> list[int]:
        """The base offsets of the data that a reader gets from `offset` on."""
        return [
            batch.base
            for batch in self.batches
            if offset <= batch.last and batch.base < stable and not batch.is_marker
            if batch.transaction is None or self.transactions[batch.transaction].is_committed
        ]

    def aborted(self, offset: int, end: int) -> list[tuple[int, int]]:
        """(first offset, producer) of the aborted transactions that a read in a range must list."""
        return sorted(
            (one.first, one.producer)
            for one in self.transactions
            if one.is_committed is False and one.marker >= offset and one.first < end
        )


class Run:
    """One log, its producers, its model, and what happens to them."""

    def __init__(self, bench: LogHarness, rng: Random) -> None:
        self.bench = bench
        self.rng = rng
        self.model = Model()
        self.opened = [bench]

    def _producer(self, number: int) -> Producer:
        producer = Producer(self.bench, number)
        producer.epoch, producer.sequence = self.model.clients[number]
        return producer

    def _keep(self, producer: Producer) -> None:
        self.model.clients[producer.id] = (producer.epoch, producer.sequence)

    def _before_send(self, producer: Producer) -> None:
        """Do what a client must whose batches trims, and the loss of footers, made unknown."""
        if not self.model.start or not producer.sequence:
            return
        described = chain.from_iterable(self.bench.log.producers.describe())
        known = {one.producer_id: one for one in described}
        if producer.id not in known:
            # A new owner can't tell this from a first batch that has just failed, and waits for it.
            self.bench.clock.ms += RETRIES_MS
        elif known[producer.id].last_sequence < 0:
            producer.epoch, producer.sequence = producer.epoch + 1, 0

    def _before_end(self, producer: Producer) -> None:
        """The same for a marker, after which sequence 0 would be expected, as in Kafka."""
        is_known = producer.id in self.bench.log.producers
        if self.model.start and producer.sequence and not is_known:
            producer.epoch, producer.sequence = producer.epoch + 1, 0

    async def send(self) -> None:
        producer = self._producer(self.rng.choice(PRODUCERS))
        self._before_send(producer)
        count = self.rng.randrange(1, 4)
        base = await producer.send(count, size=self.rng.choice((0, 300)))
        self._keep(producer)
        self.model.send(producer.id, base, count)

    async def plain(self) -> None:
        self.model.send(None, await self.bench.append(b"plain"), 1)

    async def _finish(self, *, is_commit: bool) -> None:
        producer = self._producer(self.rng.choice(PRODUCERS))
        self._before_end(producer)
        offset = await producer.end(is_commit=is_commit, version=self.rng.choice((1, 2)))
        self._keep(producer)
        self.model.finish(producer.id, offset, is_commit=is_commit)

    async def commit(self) -> None:
        await self._finish(is_commit=True)

    async def abort(self) -> None:
        await self._finish(is_commit=False)

    async def burst(self) -> None:
        """Several appends under way at once, the newest of which fail."""
        await self.plain()  # so that the log takes appends
        stable, before = self.bench.log.visibility.last_stable_offset, [copy.deepcopy(self.model)]
        self.bench.store.is_held = True
        for _ in range(self.rng.randrange(1, 6)):
            self._begin_any()
            await settle()
            if len(before) < len(self.bench.store.held) + 1:
                before.append(copy.deepcopy(self.model))
            else:  # it changed nothing, or waits for a roll
                break
            assert self.bench.log.visibility.last_stable_offset == stable, "nothing is safe yet"
        failing = self.rng.randrange(len(self.bench.store.held) + 1)
        if not self.bench.store._is_shared:
            for _ in range(failing):
                self.bench.store.fail_newest()
                before.pop()
        self.model = before[-1]
        self.bench.store.complete_all()
        await settle()

    def _begin_any(self) -> None:
        producer = self._producer(self.rng.choice(PRODUCERS))
        if self.rng.random() < 0.5:
            self._before_send(producer)
            appended = producer.begin_send()
            if appended is not None:
                self.model.send(producer.id, appended.base_offset, 1)
        else:
            is_commit = self.rng.random() < 0.5
            version = self.rng.choice((1, 2))
            self._before_end(producer)
            appended = producer.begin_end(is_commit=is_commit, version=version)
            if appended is not None:
                self.model.finish(producer.id, appended.base_offset, is_commit=is_commit)
        self._keep(producer)

    async def roll(self) -> None:
        await self.bench.log.lifecycle_host.roll_now()
        await settle()

    async def reload(self) -> None:
        if self.bench.store._is_shared:
            return
        await self.bench.reload()

    async def take(self) -> None:
        """Another broker takes the partition over."""
        if not self.bench.store._is_shared:
            return
        self.bench = self.bench.rival((self.bench.leader_epoch or 0) + 1)
        self.opened.append(self.bench)
        await self.bench.ready()

    async def footer(self) -> None:
        """A closed ledger has no footer, as after a recovery over shared storage."""
        sealed = [one for one in self.bench.log.segments if one.is_sealed]
        if sealed:
            self.bench.store._ledgers[self.rng.choice(sealed).ledger].footer = None

    async def unload(self) -> None:
        for one in self.bench.log.segments:
            if one.is_sealed and one.is_index_loaded:
                one.unload_index()

    async def trim(self) -> None:
        model = self.model
        start = self.rng.randrange(model.start, model.end + 1)
        if self.rng.random() < 0.2:
            await self.bench.log.lifecycle_host.trim(start)
            model.start = start

    async def expire(self) -> None:
        """All producers are silent for long; those with open transactions stay."""
        forget_before(self.bench.log.producers, self.bench.clock.ms + 1)
        for number, (epoch, _sequence) in self.model.clients.items():
            if number not in self.model.open:  # it is unknown, and takes a new epoch
                self.model.clients[number] = epoch + 1, 0

    async def check(self) -> None:
        log, model = self.bench.log, self.model
        if not log.is_loaded:
            await self.bench.ready()
        assert log.high_watermark == model.end
        stable = log.visibility.last_stable_offset
        if model.start:
            assert model.stable <= stable <= model.stable_at_most
        else:
            assert stable == model.stable
        for number in PRODUCERS:
            at = model.open.get(number)
            first = None if at is None else model.transactions[at].first
            if not model.start:
                assert log.producers.open_transaction(number) == first
        start = model.start
        if self.rng.random() < 0.5:
            start = self.rng.randrange(model.start, model.end + 1)
        shown = await self._consume(start)
        assert [base for base in shown if base >= start] == [
            base for base in model.committed(start, stable) if base >= start
        ]

    async def _consume(self, offset: int) -> list[int]:
        """What a client shows that leaves out what the broker lists as aborted."""
        shown: list[int] = []
        log = self.bench.log
        size = self.rng.choice((1, 500, 1 << 20))
        while offset < log.visibility.last_stable_offset:
            found = await log.reader.fetch(offset, size, READ_COMMITTED)
            headers = [header for _at, header in iterate_headers(found.data)]
            end = headers[-1].last_offset + 1
            if self.model.start == 0:  # later, some may be known by their first record that is left
                assert found.aborted == self.model.aborted(offset, end)
            assert end <= log.visibility.last_stable_offset
            coming, aborting = list(found.aborted or ()), set()
            for header in headers:
                while coming and coming[0][0] <= header.last_offset:
                    aborting.add(coming.pop(0)[1])
                if header.is_control:
                    aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    shown.append(header.base_offset)
            offset = end
        return shown


async def _play(rng: Random, steps: int) -> None:
    is_shared = rng.random() < 0.4
    config = LogConfig(segment_bytes=rng.choice((1_000, 3_000, 1 << 20)))
    async with rig(config, leader_epoch=0 if is_shared else None) as bench:
        run = Run(bench, rng)
        try:
            for _ in range(steps):
                await getattr(run, rng.choice(OPERATIONS))()
                await settle()
                await run.check()
            if not is_shared:
                await run.bench.reload()
                await run.check()
        finally:
            for one in run.opened[1:]:
                one.store.complete_all()
                await one.tasks.close()


@pytest.fixture(autouse=True)
def _notes_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "CHECKPOINT_INTERVAL_BYTES", 700)
    monkeypatch.setattr(segment, "CHECKPOINT_RATIO", 1)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_stable_committed_and_aborted_records_match_the_model(rng: Random) -> None:
    with patch.multiple(segment, CHECKPOINT_INTERVAL_BYTES=700, CHECKPOINT_RATIO=1):
        asyncio.run(_play(rng, 25))


# --- planted bugs --------------------------------------------------------------------------------


def _shows_a_transaction_when_its_marker_is_appended() -> tuple[type, str, Callable[..., object]]:
    def early(self: Visibility, first_offset: int, _marker_offset: int) -> None:
        del self._unstable[first_offset]
        self._settle()

    return Visibility, "end", early


def _shows_one_batch_of_an_open_transaction() -> tuple[type, str, Callable[..., object]]:
    begin = Visibility.begin

    def early(self: Visibility, first_offset: int, _position: int) -> None:
        begin(self, first_offset + 1, -1)
        self._unstable = {first_offset: self._unstable.pop(first_offset + 1), **self._unstable}
        self._log_start_offset = first_offset + 1

    return Visibility, "begin", early


def _lists_aborted_transactions_one_too_late() -> tuple[type, str, Callable[..., object]]:
    find = AbortedIndex.find
    return AbortedIndex, "find", lambda self, offset, end: find(self, offset + 1, end)


def _ends_the_search_one_too_early() -> tuple[type, str, Callable[..., object]]:
    find = AbortedIndex.find
    return AbortedIndex, "find", lambda self, offset, end: find(self, offset, end - 1)


def _forgets_markers_on_replay() -> tuple[type, str, Callable[..., object]]:
    return Segment, "_scan_marker", lambda *_: None


def _forgets_what_was_open_at_a_ledgers_end() -> tuple[type, str, Callable[..., object]]:
    return ProducerState, "decode_open", lambda *_: None


def _lets_a_failed_marker_stand() -> tuple[type, str, Callable[..., object]]:
    return ProducerState, "_forget_markers", lambda *_: None


def _keeps_what_a_failed_marker_aborted() -> tuple[type, str, Callable[..., object]]:
    return AbortedIndex, "truncate", lambda *_: None


def _lets_open_transactions_expire() -> tuple[type, str, Callable[..., object]]:
    def expire(self: ProducerState, before_ms: int, _now_ns: int) -> tuple[()]:
        for number, producer in list(self._producers.items()):
            if producer.seen_ms < before_ms:
                del self._producers[number]
                self._open.pop(number, None)
        return ()

    return ProducerState, "expire", expire


PLANTED = (
    _shows_a_transaction_when_its_marker_is_appended,
    _shows_one_batch_of_an_open_transaction,
    _lists_aborted_transactions_one_too_late,
    _ends_the_search_one_too_early,
    _forgets_markers_on_replay,
    _forgets_what_was_open_at_a_ledgers_end,
    _lets_a_failed_marker_stand,
    _keeps_what_a_failed_marker_aborted,
    _lets_open_transactions_expire,
)


@pytest.mark.skipif(compiled.is_used(), reason="compiled modules call each other past a patch")
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_each_planted_bug_is_found(plant: Callable[[], tuple[type, str, object]]) -> None:
    with ExitStack() as stack:
        owner, name, value = plant()
        stack.enter_context(patch.object(owner, name, value))
        for seed in range(60):
            try:
                asyncio.run(_play(Random(seed), 25))
            except Exception:
                return
    pytest.fail("no seed has found it")
