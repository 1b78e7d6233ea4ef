"""Reading a ledger whose bookies have been replaced many times."""

from __future__ import annotations

import asyncio
import struct

import pytest

from headrace.errors import DataCorrupt
from headrace.storage.bookkeeper.entries import DATA, pack_head
from headrace.storage.bookkeeper.entry_cache import EntryCache
from headrace.storage.bookkeeper.entry_reader import EntryReader
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from headrace.storage.bookkeeper.metadata_service import VersionedLedger
from headrace.storage.bookkeeper.open_ledger import OpenLedger
from headrace.storage.bookkeeper.position_reader import ENSEMBLES_MAX, PositionReader
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.wire import NO_ENTRY, OK, add_frame

LEDGER, PER_ENSEMBLE, PAYLOAD_BYTES = 7, 3, 100


class Bookies:
    """Each ensemble has three of its own; they answer in the next turn of the loop."""

    def __init__(self) -> None:
        self.rounds = 0
        """Turns in which requests were answered: one after the other had to wait for them."""
        self.asked: list[int] = []
        self.missing: set[int] = set()
        self.damaged: set[str] = set()
        """Bookies whose copies are damaged."""
        self.noted: list[tuple[str, int, int]] = []
        self._is_round = False

    def note_damage(self, *copy) -> None:
        self.noted.append(copy)

    def __getitem__(self, bookie: str):
        self._bookie = bookie
        return self

    def batch_read(self, ledger, first, count, size, answered, context) -> None:
        assert ledger == LEDGER
        ensemble = int(self._bookie.split("-")[1])
        assert first // PER_ENSEMBLE == (first + count - 1) // PER_ENSEMBLE == ensemble
        self.asked.append(first)
        loop = asyncio.get_running_loop()
        if not self._is_round:
            self._is_round = True
            self.rounds += 1
            loop.call_soon(self._end_round)
        if first in self.missing:
            loop.call_soon(answered, NO_ENTRY, memoryview(b""), context)
            return
        body = b""
        for entry in range(first, first + count):
            data = entry_of(entry)
            if context in self.damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            if body and len(body) + len(data) > size:
                break
            body += struct.pack(">i", len(data)) + data
        loop.call_soon(answered, OK, memoryview(bytes(8) + body), context)

    def _end_round(self) -> None:
        self._is_round = False


def data_of(entry: int) -> bytes:
    return bytes([entry % 251]) * PAYLOAD_BYTES


def entry_of(entry: int) -> bytes:
    position = entry * PAYLOAD_BYTES
    payload = pack_head(DATA, position, position) + data_of(entry)
    return bytes(add_frame(LEDGER, entry, entry - 1, 0, bytes(20), 0, payload)[28:])


def ledger(ensembles: int) -> tuple[Bookies, PositionReader, OpenLedger]:
    bookies = Bookies()
    metadata = LedgerMetadata(
        Quorum(3, 3, 2),
        tuple(
            Ensemble(number * PER_ENSEMBLE, tuple(f"b{slot}-{number}" for slot in range(3)))
            for number in range(ensembles)
        ),
    )
    opened = OpenLedger(LEDGER, VersionedLedger(metadata, 0))
    opened.last_entry = ensembles * PER_ENSEMBLE - 1
    opened.end = (opened.last_entry + 1) * PAYLOAD_BYTES
    reader = EntryReader(bookies, lambda _bookie: False, bookies.note_damage, hedge_ms=10_000)
    return bookies, PositionReader(reader, EntryCache(1 << 20)), opened


async def test_short_ensembles_are_read_at_the_same_time():
    count = 100
    bookies, reader, opened = ledger(count)
    found = await reader.read(opened, 0, opened.end)
    assert bytes(found) == b"".join(map(data_of, range(count * PER_ENSEMBLE)))
    # 1, 2, 4, 8, 16 ... ensembles
    assert bookies.rounds == 4 + -(-(count - 15) // ENSEMBLES_MAX)
    assert len(bookies.asked) == count


async def test_of_long_ensembles_only_what_is_wanted_is_read():
    bookies, reader, opened = ledger(40)
    size = 2 * PAYLOAD_BYTES
    found = await reader.read(opened, 0, size)
    assert bytes(found) == data_of(0) + data_of(1)
    assert bookies.asked == [0]


@pytest.mark.parametrize("missing", [3, 9, 21])
async def test_a_missing_entry_hides_no_earlier_entries(missing):
    """What comes before it is returned, and the next read says what is wrong."""

    bookies, _, opened = ledger(10)
    bookies.missing = {missing}
    reader = EntryReader(bookies, lambda _bookie: False, bookies.note_damage, hedge_ms=10_000)
    metadata = opened.versioned.metadata
    entries = await reader.read(LEDGER, metadata, 0, opened.last_entry, 1 << 20, 10)
    assert [entry.entry for entry in entries] == list(range(missing))
    with pytest.raises(DataCorrupt, match=f"entry {missing} of ledger"):
        await reader.read(LEDGER, metadata, missing, opened.last_entry, 1 << 20, 10)


async def test_each_damaged_copy_that_is_met_is_noted_and_another_one_read():
    bookies, reader, opened = ledger(2)
    order = [f"b{slot}-0" for slot in range(3)]
    bookies.damaged = {order[LEDGER % 3]}
    assert bytes(await reader.read(opened, 0, PAYLOAD_BYTES)) == data_of(0)
    assert bookies.noted == [(order[LEDGER % 3], LEDGER, 0)]
