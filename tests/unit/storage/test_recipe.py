"""Ledgers rebuilt from a table's files: byte for byte, or an error."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tracemalloc
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported, StorageUnavailable
from headrace.records.batch import HEADER_SIZE, check_batch, iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.storage.tiering import table_rows
from headrace.storage.tiering.object_format import BLOCK_BYTES, Layout, block_crc, footer_crc
from headrace.storage.tiering.recipe import RecipePlan, rebuild_run, sources_of
from headrace.storage.tiering.recipe_format import (
    END_SIZE,
    KEPT,
    Recipe,
    TableFile,
    decode_recipe,
    encode_recipe,
    rest_size,
)
from headrace.storage.tiering.table_rows import TableRows, offsets_of
from headrace.storage.tiering.table_sources import TableSources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pa = pytest.importorskip("pyarrow")


def table_file(path: Path, records: Sequence[Record], **options: Any) -> TableFile:
    """A data file with these records, as the archive writes them."""
    from pyarrow import parquet

    in_range = -62_135_596_800_000
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": one.offset,
            "timestamp": one.timestamp_ms * 1000 if one.timestamp_ms > in_range else None,
            "key": one.key,
            "headers": [{"key": k, "value": v} for k, v in one.headers] or None,
            "value": one.value,
            "raw": None
            if one.timestamp_ms > in_range
            else {"timestampMs": one.timestamp_ms, "headerKeys": None},
        }
        for one in records
    ]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    raw = pa.struct([("timestampMs", pa.int64()), ("headerKeys", pa.list_(pa.binary()))])
    schema = pa.schema(
        [
            ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")), ("key", pa.binary()),
            ("headers", headers), ("value", pa.binary()), ("raw", raw),
        ]
    )  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows, schema), path, compression="zstd", **options)
    data = path.read_bytes()
    return TableFile(str(path), len(data), hashlib.sha256(data).hexdigest())


def batches_of(seed: int, count: int) -> list[tuple[bytes, list[Record]]]:
    """Batches as producers send them, of every kind, with their records."""
    rng = random.Random(seed)
    found: list[tuple[bytes, list[Record]]] = []
    offset = 0
    for _ in range(count):
        size = rng.choice([1, 1, 3, 40])
        base_ms = rng.choice([1_700_000_000_000, -1, 0, -70_000_000_000_000])
        records = [
            Record(
                offset + at,
                base_ms + rng.randrange(0, 5) * (base_ms > 0),
                rng.choice([None, b"", b"key", rng.randbytes(70)]),
                rng.choice([None, b"", rng.randbytes(rng.choice([1, 200, 3000]))]),
                rng.choice([[], [], [("a", b"1"), ("a", None), ("", b"")]]),
            )
            for at in range(size)
        ]
        batch = encode_batch(
            records,
            base_offset=offset,
            codec=rng.choice([0, 0, 0, 0, 4]),
            producer_id=rng.choice([-1, 7]),
            producer_epoch=3,
            base_sequence=offset,
            is_transactional=rng.random() < 0.3,
            leader_epoch=5,
            log_append=rng.random() < 0.05,
        )
        found.append((batch, records))
        offset += size
    return found


def plan_of(data: bytes, files: Sequence[TableFile], rows: TableRows) -> tuple[RecipePlan, bytes]:
    plan = RecipePlan(sources_of(files, rows), rows)
    stored = [
        plan.add(memoryview(data)[at : at + header.size], header)
        for at, header in iterate_headers(data)
    ]
    return plan, b"".join(stored)


def rebuilt(plan: RecipePlan, stored: bytes, files: Sequence[TableFile], rows: TableRows) -> bytes:
    return b"".join(
        rebuild_run(run, stored[run.stored_at :][: run.stored_size], files, rows)
        for run in plan.runs
    )


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_every_kind_are_rebuilt_byte_for_byte_from_files_with_row_groups(tmp_path, seed):
    batches = batches_of(seed, 300)
    records = [one for _, own in batches for one in own]
    half = len(records) // 2
    files = [
        table_file(tmp_path / "a.parquet", records[:half], row_group_size=100),
        table_file(tmp_path / "b.parquet", records[half:]),
    ]
    data = b"".join(batch for batch, _ in batches)
    rows = TableRows()
    plan, stored = plan_of(data, files, rows)
    assert rebuilt(plan, stored, files, rows) == data
    assert plan.borrowed_records > len(records) // 2
    assert any(run.file == KEPT for run in plan.runs), "compressed batches are kept"
    for run in random.Random(seed).sample(plan.runs, 20):  # in any order, too
        part = rebuild_run(run, stored[run.stored_at :][: run.stored_size], files, rows)
        assert part == data[run.position :][: run.size]
    rows.close()


def test_records_that_the_table_lacks_or_has_otherwise_are_kept(tmp_path):
    batches = [encode_batch([Record(at, 1, b"k", b"value", [])], base_offset=at) for at in range(6)]
    wrong = [
        Record(0, 1, b"k", b"value", []),
        Record(2, 1, b"k", b"other", []),
        Record(3, 2, b"k", b"value", []),
        Record(4, 1, b"", b"value", []),
        Record(5, 1, b"k", b"value", [("h", b"")]),
    ]
    files = [table_file(tmp_path / "a.parquet", wrong)]
    data = b"".join(batches)
    plan, stored = plan_of(data, files, TableRows())
    assert plan.borrowed_records == 1
    assert stored == data[:HEADER_SIZE] + data[len(batches[0]) :]
    assert rebuilt(plan, stored, files, TableRows()) == data


def test_files_with_rows_out_of_order_or_twice_lend_nothing(tmp_path):
    records = [Record(at, 1, None, b"v", []) for at in range(4)]
    batch = encode_batch(records, base_offset=0)
    for name, rows in (("order", records[::-1]), ("twice", [records[0], *records])):
        plan, _ = plan_of(batch, [table_file(tmp_path / name, rows)], TableRows())
        assert plan.borrowed_records == 0


def test_values_that_a_file_has_once_take_no_memory_for_each_row(tmp_path):
    value, count = b"v" * 1_000_000, 400
    headers = [("h", b"w" * 300_000)]
    records = [Record(at, 1, b"k", value, headers) for at in range(count)]
    file = table_file(tmp_path / "a.parquet", records)
    assert file.size_bytes < 100_000
    rows = TableRows()
    tracemalloc.start()
    try:
        for first in (0, 3, 397, 200):
            found = rows.read(file, first, 3)
            assert found.offsets == [first, first + 1, first + 2]
            assert [*found.values, *found.headers] == [value] * 3 + [headers] * 3
            del found
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
        rows.close()


def test_files_with_row_groups_too_large_to_decode_lend_nothing(tmp_path, monkeypatch):
    records = [Record(at, 1, None, random.Random(at).randbytes(1_000), []) for at in range(100)]
    file = table_file(tmp_path / "a.parquet", records)
    assert len(offsets_of(file, TableSources())) == 100
    monkeypatch.setattr(table_rows, "GROUP_BYTES_MAX", 50_000)
    assert len(offsets_of(file, TableSources())) == 0


@pytest.mark.parametrize("harm", ["missing", "size", "content"])
def test_a_file_that_was_deleted_or_replaced_is_an_error(tmp_path, harm):
    records = [Record(at, 1, b"k", b"v%d" % at, []) for at in range(10)]
    file = table_file(tmp_path / "a.parquet", records)
    batch = encode_batch(records, base_offset=0)
    plan, stored = plan_of(batch, [file], TableRows())
    path = tmp_path / "a.parquet"
    if harm == "missing":
        path.unlink()
    elif harm == "size":
        table_file(path, [*records, Record(10, 1, b"k", b"v", [])])
    else:
        path.write_bytes(b"x" * file.size_bytes)
    with pytest.raises(StorageUnavailable if harm == "missing" else DataCorrupt) as caught:
        rebuilt(plan, stored, [file], TableRows())
    assert "a.parquet" in str(caught.value)


def decoded(encoded: bytes, size: int) -> Recipe:
    rest_size(encoded[-END_SIZE:], size, 77)
    return decode_recipe(encoded[:-END_SIZE], encoded[-END_SIZE:], 77)


def test_a_damaged_footer_is_an_error_and_does_not_end_the_process(tmp_path):
    """pyarrow aborts if it is asked for a column whose metadata contradicts the schema."""
    file = table_file(tmp_path / "a.parquet", [r for _, batch in batches_of(2, 20) for r in batch])
    code = f"""
from pathlib import Path
from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.storage.tiering.recipe_format import TableFile
from headrace.storage.tiering.table_rows import TableRows
file, path = TableFile(*{tuple(file)!r}), Path({str(tmp_path / "a.parquet")!r})
data, failed = path.read_bytes(), 0
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
schemas = range(footer, footer + 60), range(len(data) - 250, len(data) - 150)  # Arrow's is last
for places, bits in zip(schemas, (range(8), (1, 4))):
    for at, bit in [(at, bit) for at in places for bit in bits]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        rows = TableRows()
        try:
            rows.read(file, 0, 5)
        except (DataCorrupt, StorageUnavailable):
            failed += 1
        rows.close()
print(failed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) > 60


def test_a_recipe_is_decoded_as_it_was_and_damage_anywhere_is_found(tmp_path):
    batches = batches_of(5, 40)
    data = b"".join(batch for batch, _ in batches)
    files = [table_file(tmp_path / "a.parquet", [one for _, own in batches for one in own])]
    plan, _ = plan_of(data, files, TableRows())
    layout = Layout(77, len(data), 3, has_footer=True)
    blocks = range(0, len(data), BLOCK_BYTES)
    crcs = [block_crc(77, at // BLOCK_BYTES, data[at : at + BLOCK_BYTES]) for at in blocks]
    crcs.append(footer_crc(77, b"end"))
    recipe = Recipe(layout, array("I", crcs), b"end", tuple(files), tuple(plan.runs))
    encoded = encode_recipe(recipe)
    size = plan.stored_size + len(encoded)
    assert rest_size(encoded[-END_SIZE:], size, 77) == len(encoded) - END_SIZE
    assert decoded(encoded, size) == recipe
    for at in range(0, len(encoded), 7):
        harmed = bytearray(encoded)
        harmed[at] ^= 1
        with pytest.raises((DataCorrupt, FormatUnsupported), match="ledger 77"):
            decoded(bytes(harmed), size)
    assert check_batch(data).size == len(batches[0][0])
