"""Idempotent producers that try again and again while appends fail: nothing is forgotten.

Found by `headrace verify blackbox`: the first batch of a producer, or of its new epoch, failed in
an outage; the batch after it was accepted, and librdkafka took the first for acknowledged (whoever
has the later one must have the earlier): acknowledged records were lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.log.log_rig import NOW_MS, LogHarness, rig, settle

from headrace.broker.coordinators.transaction_verification import Verifications
from headrace.broker.services.appends import Appends
from headrace.errors import (
    HeadraceError,
    LedgerLost,
    MetadataUnavailable,
    OutOfOrderSequence,
    StorageUnavailable,
    WriteDeferred,
)
from headrace.log.footer import Footer, decode_footer, encode_footer
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import REFUSED_MAX, REFUSED_MS_MAX, RETRIES_MS, ProducerState
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.records.tenant_names import tenant_of
from headrace.records.validation import check_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.log.appended import Appended

TRIES = 40


def begin(bench: LogHarness, sequence: int, epoch: int = 0) -> Appended | None:
    record = Record(0, NOW_MS, None, b"%d" % sequence, [])
    batch = encode_batch([record], producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return bench.log.append(batch, check_batch(batch))


async def refused(bench: LogHarness, sequence: int, epoch: int = 0) -> None:
    """For a while it gets a retriable error, since what failed must come first; then, that it is
    out of order."""
    with pytest.raises(StorageUnavailable, match="must come first"):
        await append(bench, sequence, epoch)
    bench.clock.ms += RETRIES_MS
    with pytest.raises(OutOfOrderSequence):
        await append(bench, sequence, epoch)
    bench.clock.ms -= RETRIES_MS


async def append(bench: LogHarness, sequence: int, epoch: int = 0) -> int:
    for _ in range(TRIES):
        appended = begin(bench, sequence, epoch)
        if appended is not None:
            await appended.completion.wait()
            return appended.base_offset
        await settle()
    raise AssertionError("the log never became ready")


@pytest.mark.parametrize("first", [5, 20])
async def test_many_failed_tries_forget_neither_the_sequence_nor_the_duplicates(first) -> None:
    async with rig() as bench:
        for sequence in range(first):
            await append(bench, sequence)
        bench.store.refuse_appends = True
        for _ in range(TRIES):
            with pytest.raises(StorageUnavailable):
                await append(bench, first)
            await settle()
        bench.store.refuse_appends = False
        await refused(bench, first + 1)
        for sequence in range(first - 5, first):
            assert await append(bench, sequence) == sequence, "a retry is recognised"
        assert await append(bench, first) == first
        assert await append(bench, first + 1) == first + 1


async def test_many_appends_that_fail_at_once_forget_nothing() -> None:
    async with rig() as bench:
        for sequence in range(5):
            await append(bench, sequence)
        bench.store.is_held = True
        for sequence in range(5, 5 + TRIES):
            assert begin(bench, sequence) is not None
        await settle()
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        await refused(bench, 6)
        assert await append(bench, 0) == 0, "a retry is recognised"
        assert await append(bench, 5) == 5


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_batch_that_waits_for_its_tenants_rate_is_not_overtaken(is_known: bool) -> None:
    """Two are in flight, the first is refused: the second must not be accepted before it."""

    async with rig() as bench:
        refusals: dict[str, Callable[[], HeadraceError]] = {}
        verifications = Verifications(bench.tasks)  # type: ignore[arg-type]  # not asked
        appends = Appends(bench.clock, verifications, None, refusals)
        await append(bench, 0)
        producer_id, first = (7, 1) if is_known else (8, 0)
        tenant = tenant_of(bench.log.name)
        refusals[tenant] = lambda: WriteDeferred("owes", throttle_ms=30_000)

        def now(sequence: int) -> Appended | None:
            record = Record(0, NOW_MS, None, b"%d" % sequence, [])
            batch = encode_batch([record], producer_id=producer_id, producer_epoch=0,
                                 base_sequence=sequence)  # fmt: skip
            return appends.append_now(bench.log, memoryview(batch), check_single(batch))

        with pytest.raises(WriteDeferred):
            now(first)
        del refusals[tenant]
        bench.clock.ms += 30_000
        with pytest.raises(StorageUnavailable, match="must come first"):
            now(first + 1)
        stored = [now(first), now(first + 1)]
        assert [one.base_offset for one in stored if one is not None] == [1, 2]


async def test_producers_of_which_nothing_was_refused_are_told_what_is_out_of_order() -> None:
    """However often others are refused; of too many that are, all are taken for refused."""
    async with rig() as bench:
        retries, clock = bench.log.retries, bench.clock
        await append(bench, 0)
        for producer_id in (*range(8, 8 + REFUSED_MAX), 8):
            retries.refused(producer_id, clock.now_ms())
            assert retries.is_waiting(producer_id, clock.now_ms())
            with pytest.raises(OutOfOrderSequence):
                await append(bench, 2)
        for producer_id in (8 + REFUSED_MAX, 7):
            retries.refused(producer_id, clock.now_ms())
            with pytest.raises(StorageUnavailable, match="must come first"):
                await append(bench, 2)
            clock.ms += REFUSED_MS_MAX + RETRIES_MS
            with pytest.raises(OutOfOrderSequence):
                await append(bench, 2)


async def fail(bench: LogHarness, sequence: int, epoch: int) -> None:
    bench.store.refuse_appends = True
    with pytest.raises(StorageUnavailable):
        await append(bench, sequence, epoch)
    bench.store.refuse_appends = False
    await settle()


@pytest.mark.parametrize("epoch", [0, 1], ids=["new producer", "new epoch"])
@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_batches_after_a_failed_first_batch_are_refused(epoch, is_reloaded) -> None:
    async with rig() as bench:
        for sequence in range(3 * epoch):
            await append(bench, sequence)
        await fail(bench, 0, epoch)
        if is_reloaded and epoch:
            await bench.reload()
            with pytest.raises(OutOfOrderSequence):
                await append(bench, 1, epoch)
        else:
            await refused(bench, 1, epoch)
        assert await append(bench, 0, epoch) == 3 * epoch
        assert await append(bench, 1, epoch) == 3 * epoch + 1
        assert await append(bench, 0, epoch) == 3 * epoch, "a retry is recognised"


async def test_a_failed_first_batch_is_remembered_by_a_ledgers_footer() -> None:
    async with rig() as bench:
        for sequence in range(3):
            await append(bench, sequence)
        await fail(bench, 0, 1)
        await bench.log.lifecycle_host.roll_now()
        await settle()
        await bench.reload()
        with pytest.raises(OutOfOrderSequence):
            await append(bench, 1, 1)
        assert await append(bench, 0, 1) == 3


def test_safe_batches_are_remembered_when_newer_ones_fail() -> None:
    state = ProducerState()
    for sequence in range(12):
        record = Record(0, NOW_MS, None, b"", [])
        batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
        state.apply(check_batch(batch), sequence, NOW_MS, min(sequence, 6))
    state.truncate(6)
    stored = decode_footer(encode_footer(Footer(6, 1, OffsetIndex(), state))).producers
    for sequence in range(12):
        batch = encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
        header = check_batch(batch)
        if 1 <= sequence <= 5:
            found = stored.check(header)
            assert found is not None
            assert found.base_offset == sequence
        elif sequence == 6:
            assert stored.check(header) is None
        else:
            with pytest.raises(OutOfOrderSequence):
                stored.check(header)


async def in_doubt(bench: LogHarness, sequence: int, *, is_stored: bool) -> None:
    """Over storage that a cluster shares: an append that may or may not be stored."""
    with bench.store.in_doubt(is_stored=is_stored), pytest.raises(LedgerLost):
        await append(bench, sequence)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_batch_after_one_in_doubt_is_never_accepted_in_its_place(before, is_stored) -> None:
    """The log is read again, and contains no trace of a producer's first batch that is lost."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        for sequence in range(before):
            await append(bench, sequence)
        await in_doubt(bench, before, is_stored=is_stored)
        if is_stored:
            assert await append(bench, before + 1) == before + 2
        else:
            with pytest.raises(StorageUnavailable, match="must come first"):
                await append(bench, before + 1)
        assert await append(bench, before) == before + 1, "once, and in its place"
        assert await append(bench, before + 1) == before + 2
        assert await bench.offsets() == list(range(before + 3))


async def test_a_batch_after_one_that_never_reached_the_log_gets_a_retriable_error() -> None:
    """The log could not be read when the first came, and could when the second did."""

    async with rig(leader_epoch=0) as bench:
        await bench.append(b"a")
        bench.log = bench.open()
        get = bench.metadata.get

        async def away(_key):
            raise MetadataUnavailable("an outage")

        bench.metadata.get = away
        assert begin(bench, 0) is None
        assert bench.log.ready is not None
        with pytest.raises(MetadataUnavailable):
            await bench.log.ready.wait()
        bench.metadata.get = get
        with pytest.raises(StorageUnavailable, match="must come first"):
            await append(bench, 1)
        assert await append(bench, 0) == 1
        assert await append(bench, 1) == 2


@pytest.mark.parametrize("before", [0, 3])
async def test_a_new_owner_gives_a_retriable_error_to_batches_after_one_it_lacks(
    before,
) -> None:
    """librdkafka asks the new one with its second batch, and retries the first only then."""

    async with rig(leader_epoch=0) as bench:
        for sequence in range(before):
            await append(bench, sequence)
        rival = bench.rival(1)
        await rival.ready()
        with pytest.raises(StorageUnavailable, match="must come first"):
            await append(rival, before + 1)
        assert await append(rival, before) == before
        assert await append(rival, before + 1) == before + 1
        rival.clock.ms += RETRIES_MS
        with pytest.raises(OutOfOrderSequence):
            await append(rival, before + 3)


async def test_a_log_without_failed_appends_takes_any_first_sequence() -> None:
    """Kafka does so, too: what a producer wrote before may have been deleted since."""

    async with rig() as bench:
        assert await append(bench, 7) == 0
        with pytest.raises(OutOfOrderSequence):
            await append(bench, 9)
