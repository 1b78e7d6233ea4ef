"""Sealed ledgers read without a broker: what a range gives, whatever stores the ledger."""

from __future__ import annotations

from array import array
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.test_recipe import batches_of, plan_of, table_file

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.log import ledger_objects
from headrace.log.aborted_index import AbortedIndex
from headrace.log.footer import Footer, encode_footer
from headrace.log.ledger_objects import LedgerObjects, LedgerPlace
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.storage.tiering.object_format import (
    BLOCK_BYTES,
    HEADER_SIZE,
    Layout,
    block_crc,
    encode_header,
    encode_tail,
    footer_crc,
    object_name,
)
from headrace.storage.tiering.recipe_format import Recipe, encode_recipe, recipe_name
from headrace.storage.tiering.table_rows import TableRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LEDGER, EPOCH = 7, 5


def stored(
    folder: Path,
    batches: Sequence[bytes],
    *,
    records: Sequence[Record] = (),
    end: int | None = None,
    is_compacted: bool = False,
) -> LedgerPlace:
    """A ledger in a folder: its object, or its recipe if there are `records` for a table."""
    data, index = b"".join(batches), OffsetIndex()
    headers = list(iterate_headers(data))
    for at, header in headers:
        index.add(header.base_offset, at, header.max_timestamp_ms)
    last = headers[-1][1].last_offset
    aborted = AbortedIndex()
    aborted.add(9, headers[2][1].base_offset, last, 0)
    footer = encode_footer(Footer(last + 1, 1, index, ProducerState(), aborted, is_compacted))
    layout = Layout(LEDGER, len(data), len(footer), has_footer=True)
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    crcs = array("I", [block_crc(LEDGER, at, block) for at, block in enumerate(blocks)])
    name = recipe_name(LEDGER) if records else object_name(LEDGER)
    if records:
        files = [table_file(folder / "a.parquet", records, row_group_size=100)]
        plan, kept = plan_of(data, files, TableRows())
        assert plan.borrowed_records
        every = array("I", [*crcs, footer_crc(LEDGER, footer)])
        content = kept + encode_recipe(Recipe(layout, every, footer, tuple(files), (*plan.runs,)))
    else:
        content = encode_header(layout) + data + footer + encode_tail(layout, crcs, footer)
    path = folder / "objects" / "c" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    first = headers[0][1].base_offset
    return LedgerPlace("c", LEDGER, first, end or last + 1, EPOCH, len(data), bool(records))


def read(folder: Path, place: LedgerPlace, start: int, end: int) -> tuple[bytes, list[int]]:
    """The bytes of the batches of a range, and their first offsets."""
    with LedgerObjects(f"file://{folder / 'objects'}") as objects:
        found, offsets = b"", []
        for piece in objects.open(place).pieces(start, end, is_read_committed=True):
            for at, header in piece.batches:
                found += piece.data[at : at + header.size]
                offsets.append(header.base_offset)
        return found, offsets


@pytest.mark.parametrize("is_tabled", [False, True], ids=["object", "recipe"])
def test_a_range_gives_the_batches_that_have_offsets_of_it(tmp_path, monkeypatch, is_tabled):
    monkeypatch.setattr(ledger_objects, "PIECE_BYTES", BLOCK_BYTES)
    made = batches_of(3, 900)
    batches = [batch for batch, _ in made]
    records = [one for _, own in made for one in own]
    place = stored(tmp_path, batches, records=records if is_tabled else ())
    assert place.size_bytes > 4 * BLOCK_BYTES
    spans = [(one.base_offset, one.last_offset) for one in map(check_batch, batches)]
    rng = Random(1)
    ranges = [
        (0, place.end_offset),
        *(sorted(rng.sample(range(place.end_offset), 2)) for _ in "x" * 12),
    ]
    for start, end in ranges:
        wanted = [
            batch
            for batch, (first, last) in zip(batches, spans, strict=True)
            if first < end and last >= start
        ]
        found, _ = read(tmp_path, place, start, end)
        assert found == b"".join(wanted)


def test_compacted_ledgers_have_gaps_and_a_batch_may_be_larger_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_objects, "PIECE_BYTES", BLOCK_BYTES)
    offsets, rng = [10, 14, 15, 40, 41, 90], Random(2)
    batches = [
        encode_batch(
            [Record(at, 1, None, rng.randbytes(3 * BLOCK_BYTES if at == 40 else 5_000))],
            base_offset=at, leader_epoch=EPOCH,
        )
        for at in offsets
    ]  # fmt: skip
    place = stored(tmp_path, batches, is_compacted=True)
    for start in range(10, 91, 3):
        for end in range(start + 1, 92, 5):
            _, found = read(tmp_path, place, start, end)
            assert found == [at for at in offsets if start <= at < end]


@pytest.mark.parametrize("change", [
    {"end_offset": 41}, {"end_offset": 39}, {"base_offset": 1}, {"leader_epoch": 4},
    {"size_bytes": 1},
])  # fmt: skip
def test_a_ledger_that_is_not_the_described_one_gives_nothing(tmp_path, change):
    batches = [
        encode_batch([Record(at, 1, None, b"v")], base_offset=at, leader_epoch=EPOCH)
        for at in range(40)
    ]
    place = stored(tmp_path, batches)
    assert read(tmp_path, place, 0, 40)[1] == [*range(40)]
    with pytest.raises(DataCorrupt):
        read(tmp_path, place._replace(**change), 1, 38)
    with pytest.raises(StorageUnavailable) as missing:
        read(tmp_path, place._replace(is_tabled=True), 1, 38)
    assert missing.value.fields["is_missing"]


def test_gaps_in_a_ledger_that_is_not_compacted_are_damage(tmp_path):
    batches = [
        encode_batch([Record(at, 1, None, b"v")], base_offset=at, leader_epoch=EPOCH)
        for at in range(40)
        if at != 20
    ]
    place = stored(tmp_path, batches)
    assert read(tmp_path, place, 0, 20)[1] == [*range(20)]
    with pytest.raises(DataCorrupt, match="offset 21 instead of 20"):
        read(tmp_path, place, 0, 40)
    path = tmp_path / "objects" / "c" / object_name(LEDGER)
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 70] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataCorrupt, match="checksum"):
        read(tmp_path, place, 0, 20)


def test_aborted_transactions_are_those_that_may_have_records_in_a_piece(tmp_path):
    batches = [
        encode_batch([Record(at, 1, None, b"v")], base_offset=at, leader_epoch=EPOCH)
        for at in range(40)
    ]
    place = stored(tmp_path, batches)  # from offset 2 to the last one
    with LedgerObjects(f"file://{tmp_path / 'objects'}") as objects:
        opened = objects.open(place)
        for start, end, aborted in ((0, 2, []), (0, 3, [(9, 2)]), (30, 40, [(9, 2)])):
            (piece,) = opened.pieces(start, end, is_read_committed=True)
            assert piece.aborted == aborted
            (piece,) = opened.pieces(start, end, is_read_committed=False)
            assert piece.aborted == []
