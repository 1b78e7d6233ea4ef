"""Whatever byte of a data folder is changed, all batches without it are salvaged."""

from __future__ import annotations

import asyncio
import logging
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.broker import BrokerHarness
from tests.unit.log.transaction_rig import Producer

from headrace.inspection.salvage import DamagedLog, Lost
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.records.batch import read_header
from headrace.records.codec import decode_batch
from headrace.storage.files import FileLedgerStore
from headrace_verify.crash.data_folder import DataFolder, SlowClock, build

if TYPE_CHECKING:
    from pathlib import Path

SEED, NAME = 5, "orders-0"


class Salvaged(NamedTuple):
    records: list[tuple[int, bytes | None, bytes | None]]
    lost: list[Lost]
    warnings: list[str]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, tuple[DataFolder, Path]]:
    """A folder as a kill leaves it, its last records in the log alone, and a stopped one."""
    found = {}
    for name, is_closed in (("killed", False), ("stopped", True)):
        place = tmp_path_factory.mktemp(name)
        folder = asyncio.run(build(SEED, place, turns=8, is_closed=is_closed))
        root = place / "data"
        for path, content in folder.files().items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        found[name] = folder, root
    return found


@pytest.fixture(autouse=True)
def quiet() -> None:
    """What is damaged is logged a thousand times."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL)


def salvaged(root: Path) -> Salvaged:
    log = DamagedLog(root, NAME)
    records, lost = [], []
    for one in log.records(with_undecided=False):
        if isinstance(one, Lost):
            lost.append(one)
        else:
            records.append((one.offset, one.key, one.value))
    return Salvaged(records, lost, log.warnings)


def written(folder: DataFolder) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """The records of each batch, by its base offset."""
    return {
        batch.base_offset: [(r.offset, r.key, r.value) for r in decode_batch(batch.data)]
        for batch in folder.batches[NAME]
    }


@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_sound_partition_is_salvaged_completely(places, kind) -> None:
    folder, root = places[kind]
    assert salvaged(root) == ([r for batch in written(folder).values() for r in batch], [], [])


def changed(root: Path, path: str, at: int, mask: int) -> None:
    file = root / path
    data = bytearray(file.read_bytes())
    data[at % len(data)] ^= mask
    file.write_bytes(data)


@given(at=st.integers(0, 1 << 30), pick=st.integers(0, 1 << 10), mask=st.integers(1, 255))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_changed_byte_of_a_segment_loses_its_own_batch_at_most(places, at, pick, mask) -> None:
    folder, root = places["stopped"]
    files = sorted(p.relative_to(root).as_posix() for p in (root / "ledgers").rglob("*.*"))
    path = files[pick % len(files)]
    before = (root / path).read_bytes()
    if not before:
        return
    try:
        changed(root, path, at, mask)
        found = salvaged(root)
    finally:
        (root / path).write_bytes(before)
    batches = written(folder)
    there = {record[0] for record in found.records}
    missing = [base for base, records in batches.items() if records[0][0] not in there]
    expected = [r for base, records in batches.items() if base not in missing for r in records]
    assert found.records == expected, "in order, complete batches, with the right offsets"
    assert len(missing) <= 1
    gaps = [(lost.first, lost.last) for lost in found.lost]
    assert gaps == [(base, batches[base][-1][0]) for base in missing]
    if missing:
        data = next(b.data for b in folder.batches[NAME] if b.base_offset == missing[0])
        start = before.index(data)
        assert start <= at % len(before) < start + read_header(data, 0).size


@given(at=st.integers(0, 1 << 30), pick=st.integers(0, 1 << 10), mask=st.integers(1, 255))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_after_a_changed_byte_of_the_log_what_is_missing_is_not_passed_over(
    places, tmp_path_factory, at, pick, mask
) -> None:
    folder, root = places["killed"]
    files = sorted(p.relative_to(root).as_posix() for p in (root / "wal").glob("*.wal"))
    path = files[pick % len(files)]
    before = (root / path).read_bytes()
    try:
        changed(root, path, at, mask)
        found = salvaged(root)
    finally:
        (root / path).write_bytes(before)
    all_records = [r for batch in written(folder).values() for r in batch]
    assert [r for r in all_records if r in found.records] == found.records
    if found.records != all_records:
        is_torn = found.records == all_records[: len(found.records)]
        assert found.lost or found.warnings or is_torn


def test_a_missing_segment_is_one_gap(places, tmp_path) -> None:
    folder, root = places["stopped"]
    copy = shutil.copytree(root, tmp_path / "data")
    first = folder.batches[NAME][0].data
    path = next(p for p in copy.rglob("*.ledger") if p.read_bytes().startswith(first))
    path.unlink()
    found = salvaged(copy)
    (gap,) = found.lost
    records = [r for batch in written(folder).values() for r in batch]
    assert gap.first == 0
    assert found.records == [r for r in records if r[0] > gap.last]


class ProducerHost:
    """What a `Producer` of the log's tests needs."""

    def __init__(self, log) -> None:
        self.log = log
        self.clock = self
        self.ms = 3_600_000


async def two_transactions(root: Path, *, first: bool, second: bool, is_sealed: bool) -> bytes:
    """One producer's, of a record each; returns the marker of the first."""
    store = await FileLedgerStore.open(root, SlowClock())
    metadata = await SqliteMetadataStore.open(root / "metadata.sqlite", SlowClock())
    rig = BrokerHarness(None, store, metadata, SlowClock())
    node = await rig.start()
    try:
        await node.topics.create("orders", 1, 1, {})
        log = node.topics.get("orders").require_log(0)
        await log.wait_loaded()
        producer = Producer(ProducerHost(log))
        for is_commit in (first, second):
            await producer.send()
            marker = await producer.end(is_commit=is_commit)
            if is_commit is first:
                data = bytes(await log.reader.read(1, 1))
        assert marker == 3
        if is_sealed:
            await log.roll_now()
            await producer.send(is_transactional=False)
    finally:
        await rig.stop()
        await store.close()
        await metadata.close()
    return data


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_lost_marker_is_not_taken_for_that_of_the_next_transaction(
    tmp_path, first, is_sealed
) -> None:
    root = tmp_path / "data"
    marker = asyncio.run(two_transactions(root, first=first, second=not first, is_sealed=is_sealed))
    # Closing wrote the segment; the write-ahead log has the marker, too, and is no longer read.
    path = next(p for p in root.rglob("*.ledger") if marker in p.read_bytes())
    changed(root, path.relative_to(root).as_posix(), path.read_bytes().index(marker) + 70, 1)
    found = salvaged(root)
    offsets = [offset for offset, _, _ in found.records]
    gaps = [(lost.first, lost.is_undecided) for lost in found.lost]
    # The footer of a sealed ledger lists what was aborted.
    decided = {0} if first else {2}
    if is_sealed:
        assert (set(offsets) - {4}, gaps) == (decided, [(1, False)])
    else:
        assert (set(offsets), gaps) == (decided - {0}, [(0, True), (1, False)])
