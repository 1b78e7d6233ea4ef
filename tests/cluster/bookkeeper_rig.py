"""What tests over a real BookKeeper share: a store, and entries put where no writer would."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from tests.cluster.oracle import digest_of, stream

from headrace.errors import DataCorrupt
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.entries import DATA, pack_head
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.storage.bookkeeper.wire import add_frame, master_key
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions


@asynccontextmanager
async def opened(zookeeper: str, **settings):
    client = await ZooKeeper.connect(ZooKeeperOptions(zookeeper), SystemClock())
    store = await BookKeeperLedgerStore.open(client, BookKeeperSettings(**settings), SystemClock())
    try:
        yield store
    finally:
        await store.close()
        await client.close()


@pytest.fixture
def with_store(shared_cluster):
    """with_store(scenario, quorum): runs scenario(store) over the shared cluster."""

    def run(scenario, quorum=(3, 3, 2), **settings):
        async def main():
            address = shared_cluster.zookeeper.address
            async with opened(address, quorum=Quorum(*quorum), **settings) as store:
                return await scenario(store)

        return asyncio.run(main())

    return run


async def beside(store: BookKeeperLedgerStore) -> BookKeeperLedgerStore:
    """Another broker's store, over the same session."""
    return await BookKeeperLedgerStore.open(
        store._directory._zookeeper, store._settings, store._clock
    )


def data_entry(position: int, data: bytes, kind: int = DATA, start: int | None = None) -> bytes:
    """The payload of an entry."""
    return pack_head(kind, position, position if start is None else start) + data


async def plant_payload(store, ledger: int, entry: int, slots, payload: bytes, length: int) -> None:
    """Put an entry on some of its bookies alone."""
    frame = add_frame(ledger, entry, -1, length, master_key(b""), 0, payload)
    await plant_frame(store, ledger, entry, dict.fromkeys(slots, frame))


async def plant_frame(store, ledger: int, entry: int, frames) -> None:
    metadata = (await store._cluster.service.read(ledger)).metadata
    for slot, frame in frames.items():
        done = asyncio.get_running_loop().create_future()
        store._cluster.bookies[metadata.last_ensemble.bookies[slot]].add(
            ledger, entry, frame, lambda code, _body, done: done.set_result(code), done
        )
        assert await done == 0


async def plant(store, ledger: int, entry: int, slots, *, damaged=(), size: int = 10) -> None:
    """Put an entry of `size` bytes on some of its bookies alone, damaged on some of them."""
    payload = data_entry(entry * size, stream(entry * size, size))
    length = (entry + 1) * len(payload)
    frames = {}
    for slot in slots:
        frames[slot] = add_frame(ledger, entry, -1, length, master_key(b""), 0, payload)
        if slot in damaged:
            frames[slot][-1] ^= 1
    await plant_frame(store, ledger, entry, frames)


async def plant_damaged_end(store: BookKeeperLedgerStore, ledger: int) -> None:
    """Behind an open ledger's entries, one whose copies all fail their checksum: it may have been
    acknowledged."""
    metadata = (await store._cluster.service.read(ledger)).metadata
    entry = 0
    with suppress(DataCorrupt):  # no bookie that stores it has the next entry
        while await store._reader.read(ledger, metadata, entry, entry, 1 << 20):
            entry += 1
    slots = range(metadata.quorum.ensemble)
    await plant(store, ledger, entry, slots, damaged=slots)


async def payloads_of(store: BookKeeperLedgerStore, ledger: int) -> list[bytes]:
    """All entries of a closed ledger, trailer included, as they are on the bookies."""
    metadata = (await store._cluster.service.read(ledger)).metadata
    found: list[bytes] = []
    while len(found) <= metadata.last_entry:
        entries = await store._reader.read(
            ledger, metadata, len(found), metadata.last_entry, 1 << 20
        )
        found += [bytes(entry.payload) for entry in entries]
    return found


async def check_same(store: BookKeeperLedgerStore, ledger: int, found) -> bytes:
    """Both clients see the same entries in a closed ledger; its bytes."""
    payloads = await payloads_of(store, ledger)
    metadata = (await store._cluster.service.read(ledger)).metadata
    assert (found.last_entry, found.length) == (metadata.last_entry, metadata.length)
    assert found.digest == digest_of(payloads)
    assert found.length == sum(map(len, payloads))
    assert found.state == metadata.state.name == "CLOSED"
    info = await store.recover(ledger)
    content = bytes(await store.read(ledger, 0, 1 << 40))
    assert len(content) == info.end
    assert content == stream(0, info.end)
    return content
