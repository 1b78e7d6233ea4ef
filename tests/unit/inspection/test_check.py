"""`check` finds what the broker would report, says where, and leaves the folder as it was.

The judge is the broker itself: a damaged folder that it reports
(`headrace_verify.crash.damage.verdict`) must not pass, and one that it serves byte for byte must
not fail.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from typing import TYPE_CHECKING

import pytest

from headrace.errors import DataCorrupt, RequestInvalid
from headrace.inspection.check import Report, check
from headrace.inspection.findings import Severity
from headrace.inspection.folder import Folder
from headrace.inspection.ledgers import Ledgers
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore
from headrace.storage.files.format import decode_checkpoint
from headrace_verify.crash.damage import Frames, verdict
from headrace_verify.crash.data_folder import METADATA_FILES, DataFolder, build
from headrace_verify.rng import seeded
from headrace_verify.upgrade import archive

if TYPE_CHECKING:
    from pathlib import Path

SEED = 5
FLIPS = 100


def fingerprint(root: Path) -> dict[str, tuple[str, int, int]]:
    """Names, bytes, times of change and modes of everything in a folder."""
    return {
        path.relative_to(root).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        )
        for path in sorted(root.rglob("*"))
    }


def laid_out(folder: DataFolder, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    for path, content in folder.files().items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)
    return target


def checked(root: Path) -> Report:
    before = fingerprint(root)
    report = check(root)
    assert fingerprint(root) == before
    return report


def damages(report: Report) -> list[str]:
    return [f"{one.kind} in {one.file}: {one.cause}" for one in report.of(Severity.DAMAGE)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> DataFolder:
    """Its last records lie in the write-ahead log alone."""
    place = tmp_path_factory.mktemp("metadata")
    return asyncio.run(build(SEED, place, turns=8, is_closed=False))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> DataFolder:
    """All its records lie in segments."""
    place = tmp_path_factory.mktemp("metadata")
    return asyncio.run(build(SEED, place, turns=8, is_closed=True))


@pytest.fixture(params=["killed", "stopped"])
def folder(request) -> DataFolder:
    logging.getLogger("headrace").setLevel(logging.CRITICAL)
    return request.getfixturevalue(request.param)


def test_a_sound_folder_is_well_and_every_record_is_counted(folder, tmp_path):
    report = checked(laid_out(folder, tmp_path / "data"))
    assert not damages(report)
    assert not report.of(Severity.UNREADABLE)
    ends = {log.name: log.end_offset for log in report.logs}
    for name, batches in folder.batches.items():
        if not name.startswith("__"):
            assert ends[name] == batches[-1].base_offset + _count(batches[-1].data)
    assert {"orders-0", "orders-1", "payments-0", "__consumer_offsets-0"} <= set(ends)


def _count(batch: bytes) -> int:
    return int.from_bytes(batch[57:61], "big")


def test_check_fails_on_damage_that_the_broker_reports_and_passes_exact_data(folder, tmp_path):
    rng = seeded(SEED)
    frames = Frames(folder)
    files = {path: content for path, content in folder.files().items() if content}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    seen = {"exact": 0, "reported": 0, "torn": 0}
    for _ in range(FLIPS):
        path = rng.choice(sorted(files))
        bit = rng.randrange(8 * len(files[path]))
        content = bytearray(files[path])
        content[bit // 8] ^= 1 << bit % 8
        damaged = folder.with_file(path, bytes(content))
        is_last = frames.is_last(path, bit // 8)
        sequence = frames.sequence_before(frames.ranges[-1][0]) if is_last else 1 << 60
        kind, _ = verdict(folder, damaged, scratch if path in METADATA_FILES else None, sequence)
        report = checked(laid_out(damaged, tmp_path / "data"))
        is_well = not damages(report) and not report.of(Severity.UNREADABLE)
        where = f"bit {bit % 8} of byte {bit // 8} of {path}"
        if kind == "reported":
            assert not is_well, where
        elif kind == "exact":
            assert is_well, (where, damages(report))
        seen[kind] += 1
    assert seen["exact"]
    assert seen["reported"]


def files_of(folder: DataFolder, ending: str) -> list[str]:
    return sorted(path for path, data in folder.files().items() if path.endswith(ending) and data)


def test_a_flipped_record_names_file_position_and_offsets(stopped, tmp_path):
    root = laid_out(stopped, tmp_path / "data")
    path, position, batch = next(
        (path, at, stored)
        for path in files_of(stopped, ".ledger")
        for stored in stopped.batches["orders-0"]
        if (at := stopped.files()[path].find(stored.data)) >= 0
    )
    content = bytearray((root / path).read_bytes())
    content[position + 70] ^= 1
    (root / path).write_bytes(bytes(content))
    (found,) = checked(root).of(Severity.DAMAGE)
    assert (found.kind, found.file, found.position) == ("batch-crc", path, position)
    assert found.place.log_name == "orders-0"
    last = batch.base_offset + _count(batch.data) - 1
    assert (found.place.first_offset, found.place.last_offset) == (batch.base_offset, last)
    assert found.cause
    assert found.effect
    assert found.next_step


def test_one_lost_length_hides_one_batch_and_not_those_that_follow(stopped, tmp_path):
    root = laid_out(stopped, tmp_path / "data")
    path = files_of(stopped, ".ledger")[0]
    content = bytearray((root / path).read_bytes())
    content[8] ^= 0x40  # the first batch's length, outside its CRC
    (root / path).write_bytes(bytes(content))
    (found,) = checked(root).of(Severity.DAMAGE)
    assert (found.kind, found.position) == ("batch-framing", 0)
    assert found.place.last_offset is not None
    assert found.place.last_offset >= found.place.first_offset


@pytest.mark.parametrize("name", ["format", "checkpoint", "metadata.sqlite"])
def test_a_missing_file_that_everything_needs_is_damage(folder, tmp_path, name):
    root = laid_out(folder, tmp_path / "data")
    (root / name).unlink()
    assert name in {one.file for one in checked(root).of(Severity.DAMAGE)}


@pytest.mark.parametrize("ending", [".ledger", ".footer"])
def test_a_missing_file_of_a_ledger_names_the_partition(stopped, tmp_path, ending):
    for path in files_of(stopped, ending):
        if ending == ".ledger" and not _is_vouched_for(stopped, path):
            continue
        root = laid_out(stopped, tmp_path / "data")
        (root / path).unlink()
        found = [one for one in checked(root).of(Severity.DAMAGE) if one.file == path]
        assert found, path
        assert found[0].place.topic


def _is_vouched_for(folder: DataFolder, path: str) -> bool:
    rows = decode_checkpoint(folder.files()["checkpoint"], "checkpoint").ledgers
    return any(row.length and f"{row.ledger:016x}" in path for row in rows)


def test_a_cut_segment_names_what_was_durable(stopped, tmp_path):
    root = laid_out(stopped, tmp_path / "data")
    path = next(path for path in files_of(stopped, ".ledger") if _is_vouched_for(stopped, path))
    whole = (root / path).read_bytes()
    (root / path).write_bytes(whole[: len(whole) // 2])
    found = [one for one in checked(root).of(Severity.DAMAGE) if one.kind == "segment-short"]
    assert [(one.file, one.position) for one in found] == [(path, len(whole) // 2)]


def test_a_lost_file_of_the_write_ahead_log_is_damage_where_a_later_one_is_there(killed, tmp_path):
    root = laid_out(killed, tmp_path / "data")
    number = decode_checkpoint(killed.files()["checkpoint"], "checkpoint").wal_number
    first = f"wal/{number:016x}.wal"
    assert max((root / "wal").iterdir()).name > first.removeprefix("wal/")
    (root / first).unlink()
    found = checked(root).of(Severity.DAMAGE)
    assert ("wal-missing", first) in {(one.kind, one.file) for one in found}
    with pytest.raises(DataCorrupt, match="missing"):
        asyncio.run(FileLedgerStore.open(root, SystemClock()))


def test_a_torn_tail_of_the_write_ahead_log_is_no_damage(killed, tmp_path):
    frames = Frames(killed)
    root = laid_out(killed, tmp_path / "data")
    start, end, _ = frames.ranges[-1]
    content = bytearray((root / frames.path).read_bytes())
    content[(start + end) // 2 : end] = bytes(end - (start + end) // 2)
    (root / frames.path).write_bytes(bytes(content))
    report = checked(root)
    assert all(one.kind not in {"wal-frame", "checkpoint"} for one in report.findings)


@pytest.mark.parametrize("name", archive.names())
def test_the_data_of_older_versions_is_well(name, tmp_path):
    archive.unpack(archive.path_of(name), tmp_path)
    for root in (tmp_path / "killed", tmp_path / "stopped", tmp_path / "tiered"):
        if root.exists():
            report = checked(root)
            assert not damages(report), root
            assert not report.of(Severity.UNREADABLE)
            assert report.logs


def test_metadata_that_cannot_be_read_is_no_damage_and_not_well_either(stopped, tmp_path):
    root = laid_out(stopped, tmp_path / "data")
    (root / "metadata.sqlite").unlink()
    (root / "metadata.sqlite").mkdir()
    report = checked(root)
    assert [one.file for one in report.of(Severity.UNREADABLE)] == ["metadata.sqlite"]


@pytest.mark.parametrize("content", [None, "notes.txt"])
def test_a_folder_that_is_none_is_refused(tmp_path, content):
    root = tmp_path / "elsewhere"
    if content:
        root.mkdir()
        (root / content).write_text("words")
    with pytest.raises(RequestInvalid, match="--data-dir"):
        check(root)


def test_a_ledger_that_was_written_in_bulk_is_as_long_as_its_entry_says(tmp_path):
    async def killed_store() -> None:
        store = await FileLedgerStore.open(tmp_path / "data", SystemClock())
        ledger = await store.create()
        writer = store.bulk_writer(ledger)
        await writer.write([b"bytes"], 5).wait()
        await writer.finish()
        writer.close()
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
        await store.close()

    asyncio.run(killed_store())
    (found,) = Ledgers(Folder(tmp_path / "killed")).by_id.values()
    assert (found.end, found.durable, found.is_short) == (5, 5, False)
    (tmp_path / "killed" / found.segment).write_bytes(b"byte")
    (found,) = Ledgers(Folder(tmp_path / "killed")).by_id.values()
    assert found.is_short
