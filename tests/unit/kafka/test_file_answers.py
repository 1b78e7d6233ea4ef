"""Answers to fetches that go out of a ledger's file: the same bytes, in the order of requests."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from contextlib import asynccontextmanager

import pytest
import uvloop
from tests.kit.broker import BrokerHarness
from tests.kit.records import append, batch

from headrace.broker.broker_config import BrokerConfig
from headrace.kafka.client.exchange import request_frame
from headrace.records.batch import iterate_headers
from headrace.runtime import compiled
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore
from headrace.storage.files.segments import Segments
from headrace.storage.ledger import LocatesBytes

BATCHES = 40
BATCH_BYTES = 100_000


def request(api: int, version: int, correlation_id: int, body: bytes) -> bytes:
    return request_frame(b"t", api, version, correlation_id, body, is_flexible=False)


def fetch(correlation_id: int, offset: int, size: int) -> bytes:
    body = struct.pack(">iiiibih", -1, 500, 1, size, 0, 1, 4) + b"logs"
    body += struct.pack(">iiqi", 1, 0, offset, size)
    return request(1, 4, correlation_id, body)


async def answer(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def records_of(body: bytes, correlation_id: int) -> bytes:
    assert int.from_bytes(body[:4], "big") == correlation_id, "answers come in order"
    assert body[26:28] == b"\x00\x00", "no error"
    size = int.from_bytes(body[48:52], "big")
    assert len(body) == 52 + size
    return body[52:]


@asynccontextmanager
async def filled_broker(folder):
    clock = SystemClock()
    store = await FileLedgerStore.open(folder / "ledgers", clock, wal_file_bytes=8 << 20)
    rig = BrokerHarness(BrokerConfig(offsets_partition_count=1), store, clock=clock)
    node = await rig.start()
    try:
        address = await rig.face.listen("127.0.0.1", 0)
        await node.topics.create("logs", 1, 1, {})
        log = node.topics.get("logs").require_log(0)
        await log.wait_loaded()
        rng = random.Random(3)
        for _ in range(BATCHES):
            await append(log, batch(rng.randbytes(BATCH_BYTES), timestamp_ms=1_000))
        yield address, log, store
    finally:
        await rig.stop()
        await store.close()


@pytest.fixture
def sent(monkeypatch):
    """How many bytes went out of files."""
    sizes = []
    sendfile = os.sendfile

    def counting(*arguments):
        size = sendfile(*arguments)
        sizes.append(size)
        return size

    monkeypatch.setattr(os, "sendfile", counting)
    return sizes


def run(main, loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main, 30))


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_a_log_that_is_read_in_pieces_of_a_mebibyte_is_what_lies_in_its_ledger(
    tmp_path, sent, loop
):
    async def main():
        async with filled_broker(tmp_path) as (address, log, store):
            reader, writer = await asyncio.open_connection(*address, limit=1 << 24)
            got, offset = b"", 0
            while offset < BATCHES:
                writer.write(fetch(offset, offset, 1 << 20))
                data = records_of(await answer(reader), offset)
                offset = [header for _, header in iterate_headers(data)][-1].last_offset + 1
                got += data
            stored = await store.read(log.segments[0].ledger, 0, 1 << 30)
            assert got == stored
            writer.close()

    run(main(), loop)
    assert sum(sent) > 3_000_000 or not sent, "most of it, where the kernel tells what it holds"


@LOOPS
def test_a_slow_reader_with_many_requests_gets_all_answers_whole_and_in_order(tmp_path, loop):
    async def main():
        async with filled_broker(tmp_path) as (address, log, store):
            stored = bytes(await store.read(log.segments[0].ledger, 0, 1 << 30))
            size = len(stored) // BATCHES
            # A small limit: the reader's side fills up, and the broker has to keep the rest.
            reader, writer = await asyncio.open_connection(*address, limit=1_000)
            offsets = [random.Random(8).randrange(BATCHES) for _ in range(30)]
            for number, offset in enumerate(offsets):
                writer.write(fetch(number, offset, 700_000))
            for number, offset in enumerate(offsets):
                data = records_of(await answer(reader), number)
                assert data, "at least one batch"
                assert stored[offset * size :].startswith(data)
                await asyncio.sleep(0.005)
            writer.close()

    run(main(), loop)


def test_a_file_that_cannot_be_read_ends_the_connection_and_no_other(tmp_path, monkeypatch):
    if compiled.is_used():
        pytest.skip("a compiled class keeps the methods that it was built with")

    def refuse(self, ledger):
        raise OSError(5, "injected")

    async def main():
        async with filled_broker(tmp_path) as (address, log, store):
            if store.locate_cached(log.segments[0].ledger, 0, 1 << 20) is None:
                pytest.skip("this kernel does not tell what it has in memory")
            reader, writer = await asyncio.open_connection(*address, limit=1 << 24)
            other, other_writer = await asyncio.open_connection(*address, limit=1 << 24)
            locate = Segments.locate_cached

            def spoilt(self, *arguments):
                found = locate(self, *arguments)
                found._opened = lambda: refuse(self, 0)
                return found

            monkeypatch.setattr(Segments, "locate_cached", spoilt)
            writer.write(fetch(0, 0, 1 << 20))
            assert len(await reader.read()) < 100, "no more than its head"
            monkeypatch.setattr(Segments, "locate_cached", locate)
            other_writer.write(fetch(1, 0, 1 << 20))
            assert records_of(await answer(other), 1)
            writer.close()
            other_writer.close()

    run(main(), asyncio.new_event_loop)


def test_only_acknowledged_bytes_are_located(tmp_path):
    async def main():
        async with filled_broker(tmp_path) as (_address, log, store):
            assert isinstance(store, LocatesBytes)
            ledger = log.segments[0].ledger
            end = log.segments[0].end_position
            _, completion = store.append(ledger, [bytes(1 << 20)], 1 << 20, None)
            assert store.locate_cached(ledger, end, 1 << 20) is None
            await completion.wait()
            located = store.locate_cached(ledger, end, 1 << 20)
            assert located is None or located.read() == bytes(1 << 20)

    run(main(), asyncio.new_event_loop)
