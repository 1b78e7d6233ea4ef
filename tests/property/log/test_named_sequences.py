"""Named sequences of one partition against a plain model, through the service that appends.

Producers repeat what they are not sure of, while appends fail, ledgers roll and the log is read
again or taken over. Each sequence that was acknowledged is in the log once.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.log_rig import LogHarness, rig, settle
from tests.waiting import until

from headrace.broker.coordinators.transaction_verification import Verifications
from headrace.broker.services import admission
from headrace.broker.services.appends import Appends
from headrace.errors import HeadraceError
from headrace.log.appended import BatchPlace
from headrace.log.log_config import LogConfig
from headrace.log.named_sequences import NamedSequences
from headrace.records.attributes import NamedSequence
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.records.compression import ZSTD

NAMES = ("a", "b", "c")
OPERATIONS = (
    *("send",) * 6,
    *("repeat",) * 4,
    "hold",
    "complete_all",
    "fail",
    "roll",
    "reload",
    "takeover",
)


class _NamedSequences:
    def __init__(self, base: LogHarness, rng: Random) -> None:
        self.rig, self.rng = base, rng
        self.next = dict.fromkeys(NAMES, 0)
        self.sent: list[bytes] = []
        self.acknowledged: set[tuple[str, int]] = set()
        self.appends = self._appends()

    def _appends(self) -> Appends:
        return Appends(self.rig.clock, Verifications(self.rig.tasks))  # type: ignore[arg-type]

    def batch(self) -> bytes:
        records = []
        for _ in range(self.rng.randrange(1, 4)):
            name = self.rng.choice(NAMES)
            sequence = self.next[name]
            self.next[name] += self.rng.randrange(1, 3)
            headers = [
                ("headrace-producer", name.encode()),
                ("headrace-sequence", b"%d" % sequence),
            ]
            records.append(Record(0, self.rig.clock.ms, None, b"v" * 200, headers))
        return encode_batch(records, codec=self.rng.choice((0, ZSTD)))

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        names = [_named(record) for record in iterate_records(data)]

        def then(outcome: BatchPlace | BaseException) -> None:
            if isinstance(outcome, BatchPlace):
                self.acknowledged.update(names)
            else:
                assert isinstance(outcome, HeadraceError), outcome

        try:
            self.appends.append(self.rig.log, memoryview(data), check_batch(data), then)
        except HeadraceError:
            pass

    async def do(self, operation: str) -> None:
        store = self.rig.store
        if operation == "send":
            self.send(self.batch())
        elif operation == "repeat" and self.sent:
            self.send(self.rng.choice(self.sent[-6:]))
        elif operation == "hold":
            store.is_held = True
        elif operation == "complete_all":
            store.complete_all()
        elif operation == "fail" and store.held:
            if store._is_shared:
                store.lose_answers()
            else:
                store.fail_newest()
        elif operation == "roll" and not store.held:
            store.is_held = False
            await self.rig.log.lifecycle_host.roll_now()
        elif operation == "reload":
            store.complete_all()
            await self.rig.reload()
            self.appends = self._appends()
        elif operation == "takeover" and self.rig.leader_epoch is not None:
            store.complete_all()
            await settle()
            self.rig = self.rig.rival(self.rig.leader_epoch + 1)
            await self.rig.ready()
            self.appends = self._appends()
        await settle()

    async def check(self) -> None:
        self.rig.store.complete_all()
        await settle()
        log = self.rig.log
        found: list[tuple[str, int]] = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            data = bytes(await log.reader.read(offset, 1_000_000))
            found += [_named(record) for record in iterate_records(data)]
            offset = check_batch_end(data)
        assert len(found) == len(set(found)), "a sequence was stored twice"
        highest: dict[str, int] = {}
        for name, sequence in found:
            assert sequence > highest.get(name, -1), "a sequence ascends"
            highest[name] = sequence
        for name, sequence in self.acknowledged:
            assert sequence <= highest.get(name, -1), "an acknowledged sequence is unknown"
        for name, sequence in highest.items():
            assert log.producers.named.find(NamedSequence(name, sequence)) is not None
            assert log.producers.named.find(NamedSequence(name, sequence + 1)) is None


def check_batch_end(data: bytes) -> int:
    at = end = 0
    while at < len(data):
        header = check_batch(data, at)
        at, end = at + header.size, header.last_offset + 1
    return end


def _named(record: Record) -> tuple[str, int]:
    headers = {name: value or b"" for name, value in record.headers}
    return headers["headrace-producer"].decode(), int(headers["headrace-sequence"])


async def _run(seed: int, epoch: int | None, operations: list[str]) -> None:
    config = LogConfig(has_attributes=True, segment_bytes=3_000)
    async with rig(config, epoch) as made:
        world = _NamedSequences(made, Random(seed))
        for operation in operations:
            await world.do(operation)
        await world.check()


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    epoch=st.sampled_from([None, 1]),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=5, max_size=40),
)
@pytest.mark.parametrize("inline_max", [0, admission.DISTINCT_RECORDS_MAX])
def test_each_sequence_is_stored_once_whatever_fails(inline_max, seed, epoch, operations):
    """Also while duplicates are left out in the thread."""
    with patch.object(admission, "DISTINCT_RECORDS_MAX", inline_max):
        asyncio.run(_run(seed, epoch, operations))


async def test_what_failed_while_duplicates_were_left_out_is_no_duplicate():
    """The thread has made a batch without what an earlier append had, which then failed."""
    may_work, makes = threading.Event(), admission.distinct

    def waiting(*arguments: Any) -> Any:
        may_work.wait()
        return makes(*arguments)

    async with rig(LogConfig(has_attributes=True)) as made:
        world = _NamedSequences(made, Random(1))

        def batch(*sequences: int) -> bytes:
            headers = [[("headrace-producer", b"a"), ("headrace-sequence", b"%d" % one)]
                       for one in sequences]  # fmt: skip
            return encode_batch([Record(0, made.clock.ms, None, b"v", one) for one in headers])

        world.send(batch(1))
        await settle()
        made.store.is_held = True
        world.send(batch(2))
        with (
            patch.object(admission, "DISTINCT_RECORDS_MAX", 0),
            patch.object(admission, "distinct", waiting),
        ):
            try:
                world.send(batch(2, 3))
                await settle()
                made.store.fail_newest()
            finally:
                may_work.set()
            made.store.is_held = False
            await until(lambda: ("a", 3) in world.acknowledged)
        data = bytes(await made.log.reader.read(0, 1_000_000))
        assert [_named(one) for one in iterate_records(data)] == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.parametrize("bug", ["apply", "truncate", "encode"])
def test_a_planted_bug_is_found(bug):
    empty = NamedSequences().encode()
    broken = {
        "apply": lambda *_: None,
        "truncate": lambda *_: None,
        "encode": lambda _self: empty,
    }[bug]
    rng = Random(1)

    def search() -> None:
        for seed in range(200):
            operations = [rng.choice(OPERATIONS) for _ in range(40)]
            asyncio.run(_run(seed, 1 if bug == "encode" else None, operations))

    with patch.object(NamedSequences, bug, broken), pytest.raises(AssertionError):
        search()
