"""Objects: the store that speaks to them, damage in them, and servers that fail or stall."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.object_server import BUCKET as OBJECTS
from tests.object_server import ObjectServer
from tests.s3_server import S3Server
from tests.unit.storage.test_recipe import table_file

from headrace.errors import DataCorrupt, LedgerUnknown, RequestInvalid, StorageUnavailable
from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace.storage.ledger import LedgerId
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering.blob_store import PART_BYTES, BlobLimits, BlobStore
from headrace.storage.tiering.object_format import (
    BLOCK_BYTES,
    TRAILER_SIZE,
    ledger_of_name,
    object_name,
)
from headrace.storage.tiering.read_ahead import REQUESTS_MAX
from headrace.storage.tiering.recipe_format import recipe_name
from headrace.storage.tiering.recipe_writing import RUNS_MORE
from headrace.storage.tiering.tiered_store import OTHER_FILES, TieredLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

IMPATIENT = BlobLimits(timeout_ms=300, connect_timeout_ms=300, retries_max=1, retry_for_ms=500)
SECRET = "not-a-secret-of-anybody"


def memory_blobs(store: Any = None) -> BlobStore:
    return BlobStore(store or obstore.store.MemoryStore(), "memory", None, BlobLimits())


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@asynccontextmanager
async def offloaded(blobs: BlobStore, data: bytes, footer: bytes = b"footer", **options: Any):
    """(store, ledger) of a ledger that lies in its object alone."""
    inner = MemoryLedgerStore()
    store = TieredLedgerStore(inner, blobs, "c", SystemClock(), **options)
    try:
        yield store, await offloaded_ledger(store, data, footer)
    finally:
        await store.close()


async def offloaded_ledger(store: TieredLedgerStore, data: bytes, footer: bytes) -> LedgerId:
    ledger = await store.create()
    _, done = store.append(ledger, [data], len(data), None)
    await done.wait()
    await store.seal(ledger, footer)
    store.attach(ledger, await store.offload(ledger), is_local=True)
    await store.drop_local(ledger)
    return ledger


# --- blobs -------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "memory", "s3"])
def blobs(request, tmp_path, monkeypatch):
    """Blob stores of each kind that runs here."""
    if request.param == "memory":
        yield memory_blobs()
        return
    if request.param == "folder":
        yield BlobStore.open(f"file://{tmp_path}/made/now")
        return
    server = S3Server(tmp_path).start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    try:
        yield BlobStore.open(server.url)
    finally:
        server.stop()


async def test_a_blob_is_written_read_by_range_listed_replaced_and_deleted(blobs):
    await blobs.probe("probe/one")
    large = bytes(range(256)) * (2 * PART_BYTES // 256 + 1)  # three parts
    assert await blobs.put("c/a", pieces(large[:1000], large[1000:])) == len(large)
    assert await blobs.put("c/b/deep", pieces(b"small")) == 5
    assert await blobs.put("other", pieces(b"x")) == 1
    assert await blobs.size("c/a") == len(large)
    assert await blobs.get("c/a", PART_BYTES - 3, 7) == large[PART_BYTES - 3 :][:7]
    assert await blobs.get("c/a", 0, 0) == b""
    found = {item.name: item.size_bytes async for item in blobs.list("c")}
    assert found == {"c/a": len(large), "c/b/deep": 5}
    assert set(await blobs.folders()) - {"probe"} == {"c"}
    assert [item async for item in blobs.list("nothing/here")] == []
    await blobs.put("c/a", pieces(b"new"))
    assert await blobs.get("c/a", 0, 3) == b"new"
    for _ in range(2):
        await blobs.delete("c/a")
    for beyond in (blobs.get("c/a", 0, 1), blobs.size("c/a"), blobs.get("c/b/deep", 3, 9)):
        with pytest.raises(StorageUnavailable) as caught:
            await beyond
        assert caught.value.fields["is_missing"]
        assert caught.value.fields["is_objects"]


async def test_an_upload_that_fails_half_way_leaves_no_object(blobs):
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * PART_BYTES
        yield b"y" * PART_BYTES
        raise ValueError("the ledger cannot be read")

    with pytest.raises(ValueError, match="the ledger"):
        await blobs.put("c/half", broken())
    assert [item async for item in blobs.list("c")] == []
    await blobs.put("c/half", pieces(b"whole"))
    assert [item.size_bytes async for item in blobs.list("c")] == [5]


async def test_remains_of_a_killed_upload_to_a_folder_are_removed_by_the_next(tmp_path):
    store = BlobStore.open(f"file://{tmp_path}")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a#1").write_bytes(b"half")
    await store.put("c/a", pieces(b"whole"))
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["a"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "nonsense",
        "s3://",
        "s3:///prefix",
        "file://relative/x",
        "file:///",
        f"s3://key:{SECRET}@bucket/x",
        f"az://container/x?sig={SECRET}",
        f"gs://bucket/#{SECRET}",
    ],
)
def test_a_url_that_names_no_place_or_more_than_one_is_refused_without_being_shown(url):
    with pytest.raises(RequestInvalid) as caught:
        BlobStore.open(url)
    assert SECRET not in str(caught.value)


# --- servers that fail ---------------------------------------------------------------------------


@contextmanager
def failing_server(status: int, body: str):
    """A server that answers everything alike; it counts the requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            server.requests += 1
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            text = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, *_values: object) -> None:
            """Quiet."""

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = 0
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def stalled_server():
    """A server that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.fixture
def s3_at(monkeypatch):
    def use(port: int) -> BlobStore:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "headrace-test-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        return BlobStore.open("s3://bucket/prefix", IMPATIENT)

    return use


def all_calls(store: BlobStore) -> list[Any]:
    async def listing() -> None:
        async for _item in store.list("c"):
            pass

    return [
        store.put("a", pieces(b"x" * (PART_BYTES + 1))),
        store.get("a", 0, 10),
        store.size("a"),
        store.delete("a"),
        listing(),
    ]


def test_server_errors_are_retriable_and_reported_without_secrets(s3_at):
    body = (
        f"<Error>\n<Message>{SECRET} at https://x/y?X-Amz-Signature=abc&sig=def</Message></Error>"
    )
    with failing_server(500, body) as server:
        store = s3_at(server.server_address[1])

        async def main() -> None:
            for call in all_calls(store):
                with pytest.raises(StorageUnavailable) as caught:
                    await call
                assert caught.value.fields["is_objects"]
                text = str(caught.value)
                assert "s3://bucket/prefix" in text
                assert "500" in text
                assert SECRET not in text
                assert "Signature" not in text
                assert "sig=" not in text
                assert "\n" not in text
                assert len(text) < 600

        asyncio.run(main())
        assert server.requests >= 10, "each of the five is tried again"


def test_a_call_to_an_unreachable_or_silent_server_ends_in_bounded_time_and_holds_up_no_loop(s3_at):
    async def main(store: BlobStore) -> None:
        turns = control = 0
        is_over = threading.Event()

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.005)
                turns += 1

        def turn_beside() -> None:
            """The same in a thread: what this machine allows while the loop may be blocked."""
            nonlocal control
            while not is_over.wait(0.005):
                control += 1

        turning = asyncio.ensure_future(turn())
        beside = threading.Thread(target=turn_beside)
        beside.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        results = await asyncio.gather(*all_calls(store), return_exceptions=True)
        took_s = loop.time() - began
        turning.cancel()
        is_over.set()
        beside.join()
        assert all(isinstance(result, StorageUnavailable) for result in results), results
        assert took_s < 60  # they may try for less than a second
        assert turns > control // 4, "the loop was blocked"

    with stalled_server() as port:
        asyncio.run(main(s3_at(port)))
    asyncio.run(main(s3_at(port)))  # nobody listens there any more


# --- damage --------------------------------------------------------------------------------------

DATA = bytes(range(251)) * (2 * BLOCK_BYTES // 251 + 40)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), size=st.integers(1, 9))
def test_damage_anywhere_in_an_object_is_reported_and_never_served(share, flip, size):
    async def main() -> None:
        objects = obstore.store.MemoryStore()
        async with offloaded(memory_blobs(objects), DATA) as (store, ledger):
            name = f"c/{object_name(ledger)}"
            stored = bytearray(await (await obstore.get_async(objects, name)).bytes_async())
            first = int(share * len(stored))
            for at in range(first, min(first + size, len(stored))):
                stored[at] ^= flip
            await obstore.put_async(objects, name, bytes(stored))
            served = reported = 0
            for position in range(0, len(DATA), 100_000):
                try:
                    data = await store.read(ledger, position, 100_000)
                except DataCorrupt:
                    reported += 1
                else:
                    assert data == DATA[position : position + 100_000]
                    served += 1
            try:
                assert (await store.recover(ledger)).footer == b"footer"
            except DataCorrupt:
                reported += 1
            # The 24 zeros at the end of the header are there for later, and covered as well.
            assert reported, f"bytes {first}.. of {len(stored)} are damaged"
            assert store.counters.corrupt_blocks == reported, "whatever is damaged is counted"

    asyncio.run(main())


@pytest.mark.parametrize(
    "at",
    [0, 20, -1, -TRAILER_SIZE - 2],
    ids=["magic", "header", "trailer", "checksums"],
)
def test_damage_beside_the_data_is_counted_and_logged_once(at, caplog):
    async def main() -> None:
        objects = obstore.store.MemoryStore()
        async with offloaded(memory_blobs(objects), DATA) as (store, ledger):
            name = f"c/{object_name(ledger)}"
            stored = bytearray(await (await obstore.get_async(objects, name)).bytes_async())
            stored[at] ^= 1
            await obstore.put_async(objects, name, bytes(stored))
            for count in (1, 2):
                with pytest.raises(DataCorrupt):
                    await store.read(ledger, 0, 10)
                assert store.counters.corrupt_blocks == count

    asyncio.run(main())
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "corrupt" in line.getMessage()


async def test_an_object_that_is_cut_short_replaced_or_another_ledgers_is_not_served():
    objects = obstore.store.MemoryStore()
    async with offloaded(memory_blobs(objects), DATA) as (store, ledger):
        name = f"c/{object_name(ledger)}"
        stored = bytes(await (await obstore.get_async(objects, name)).bytes_async())
        assert await store.is_whole(ledger)
        for bad in (stored[:-1], stored[: len(stored) // 2], stored[:10], b""):
            await obstore.put_async(objects, name, bad)
            assert not await store.is_whole(ledger)
            store._remote[ledger].shut()
            with pytest.raises((DataCorrupt, StorageUnavailable)):
                await store.read(ledger, 0, 10)
        async with offloaded(memory_blobs(objects), DATA[:-1]) as (other, same_id):
            assert same_id == ledger, "another ledger of this name, one byte shorter"
            with pytest.raises(DataCorrupt):
                await store.read(ledger, 0, 10)
            assert await other.read(ledger, 0, 10) == DATA[:10]
        await obstore.delete_async(objects, name)
        assert not await store.is_whole(ledger)


async def test_a_ledger_that_was_deleted_meanwhile_is_said_to_be_unknown():
    async with offloaded(memory_blobs(), DATA) as (store, ledger):
        store.discard(ledger)
        for call in (store.is_whole, store.drop_local, store.check_recipe):
            with pytest.raises(LedgerUnknown, match="was deleted"):
                await call(ledger)
        with pytest.raises(LedgerUnknown, match="was deleted"):
            await store.write_recipe(ledger, [])


async def test_a_block_that_was_bent_on_its_way_is_asked_for_again():
    class Bending(BlobStore):
        bad = 0

        async def get(self, name: str, start: int, size: int) -> memoryview:
            data = await super().get(name, start, size)
            if self.bad and size > 1000:
                self.bad -= 1
                return memoryview(b"\x00" * size)
            return data

    blobs = Bending(obstore.store.MemoryStore(), "memory", None, BlobLimits())
    async with offloaded(blobs, DATA) as (store, ledger):
        blobs.bad = 1
        assert await store.read(ledger, 5, 10) == DATA[5:15]
        assert store.counters.corrupt_blocks == 0


async def test_an_upload_that_is_not_what_was_written_does_not_count():
    class Losing(BlobStore):
        async def put(self, name: str, parts: AsyncIterator[bytes]) -> int:
            whole = b"".join([bytes(part) async for part in parts])
            bent = whole[:70] + b"!" + whole[71:]
            return await super().put(name, pieces(bent))

    blobs = Losing(obstore.store.MemoryStore(), "memory", None, BlobLimits())
    with pytest.raises(DataCorrupt):
        async with offloaded(blobs, DATA):
            pass


# --- reading ahead -------------------------------------------------------------------------------


def test_reads_at_any_place_and_of_any_size_are_the_ledgers_bytes_in_bounded_memory():
    data = DATA * 4

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, len(data)), st.integers(1, 3 << 20)), max_size=8),
        st.integers(1, 1 << 21),
    )
    def check(ranges: list[tuple[int, int]], cache_bytes: int) -> None:
        async def main() -> None:
            options = {"cache_bytes_max": cache_bytes}
            async with offloaded(memory_blobs(), data, **options) as (store, ledger):
                reads = [store.read(ledger, position, size) for position, size in ranges]
                for (position, size), found in zip(
                    ranges, await asyncio.gather(*reads), strict=True
                ):
                    assert found == data[position : position + size]
                    cached = store.read_cached(ledger, position, size)
                    assert cached is None or cached == found
                assert store._ahead.size_bytes <= max(cache_bytes, 4 << 20)

        asyncio.run(main())

    check()


async def test_sequential_reads_are_prefetched_and_random_reads_cost_one_block_each():
    data = DATA * 12

    async with offloaded(memory_blobs(), data) as (store, ledger):
        for position in range(0, len(data), 1 << 16):
            if store.read_cached(ledger, position, 1 << 16) is None:
                await store.read(ledger, position, 1 << 16)
            for _ in range(20):
                await asyncio.sleep(0.0005)
        requests = store.counters.cold_reads
        assert requests <= 4 + len(data) / (1 << 20) + 5, "runs grow to 1 MiB"
        await store.read(ledger, 3 * BLOCK_BYTES + 17, 5)
    async with offloaded(memory_blobs(), data) as (store, ledger):
        for block in (9, 3, 17):
            await store.read(ledger, block * BLOCK_BYTES + 17, 5)
        assert store.counters.cold_bytes == 3 * BLOCK_BYTES


def test_a_name_says_whose_object_it_is():
    for ledger in (0, 1, 255, 256, 2**63 - 1):
        assert ledger_of_name("some/prefix/" + object_name(ledger)) == ledger
    for name in ("ledgers/01/x.ledger", "ledgers/02/0000000000000001.ledger", "a", ""):
        assert ledger_of_name(name) is None


# --- recipes in place of objects -----------------------------------------------------------------


async def test_metadata_from_before_a_recipe_replaced_the_object_still_gives_the_records(tmp_path):
    """A restored backup, or a broker that was not told whether its note was stored."""
    pytest.importorskip("pyarrow")
    records = [Record(at, 1_700_000_000_000, None, b"v" * 500, []) for at in range(100)]
    data = encode_batch(records, base_offset=0)
    async with offloaded(memory_blobs(), data) as (store, ledger):
        assert await store.write_recipe(ledger, [table_file(tmp_path / "a", records)]) is None
        names = [item.is_recipe async for item in store.list_objects()]
        assert sorted(names) == [False, True]
        await store._blobs.delete(f"c/{object_name(ledger)}")
        store._forget(ledger)
        store.attach(ledger, len(data), is_local=False)
        assert bytes(await store.read(ledger, 0, len(data))) == data
        assert (await store.recover(ledger)).footer == b"footer"
        # The next round records what is there, if its files are those that were tagged.
        assert await store.write_recipe(ledger, [table_file(tmp_path / "a", records)]) is None
        rewritten = table_file(tmp_path / "b", records)
        assert await store.write_recipe(ledger, [rewritten]) == OTHER_FILES
        assert bytes(await store.read(ledger, 0, len(data))) == data
        await store._blobs.delete(f"c/{recipe_name(ledger)}")
        store._forget(ledger)
        store.attach(ledger, len(data), is_local=False)
        with pytest.raises(StorageUnavailable, match="ledger"):
            await store.read(ledger, 0, len(data))
        with pytest.raises(LedgerUnknown):
            await store.write_recipe(LedgerId(99), [])


@asynccontextmanager
async def tabled(folder: Path, count: int, size: int):
    """(store, ledger, data, path) of a ledger whose records are in a table's file alone, in `count`
    batches of two records, every sixth of which is kept in the recipe."""
    rng = random.Random(count)
    records = [Record(at, 1_700_000_000_000, None, rng.randbytes(size), []) for at in range(count)]
    lent = [one for one in records if one.offset // 2 % 6]
    data = b"".join(encode_batch(records[at : at + 2], base_offset=at) for at in range(0, count, 2))
    async with offloaded(memory_blobs(), data) as (store, ledger):
        assert await store.write_recipe(ledger, [table_file(folder / "a", lent)]) is None
        store.attach(ledger, len(data), is_local=False, is_tabled=True)
        await store._blobs.delete(f"c/{object_name(ledger)}")
        yield store, ledger, data, folder / "a"


async def test_a_range_of_a_recipe_is_one_request_however_many_runs_it_has(tmp_path):
    pytest.importorskip("pyarrow")
    async with tabled(tmp_path, 400, 1_500) as (store, _ledger, data, _path):
        (remote,) = store._remote.values()
        await remote.open()
        runs = remote._recipe.runs
        assert len(runs) > 60
        before = store.counters.cold_reads
        assert await remote.read_blocks(0, 2) == data[: 2 * BLOCK_BYTES]
        assert store.counters.cold_reads == before + 1


async def test_rebuilt_runs_that_are_kept_are_bounded_for_all_ledgers_together(tmp_path):
    pytest.importorskip("pyarrow")
    async with tabled(tmp_path, 1_200, 1_500) as (store, ledger, data, _):
        store._runs._bytes_max = 100_000
        largest = max(run.size for run in (await opened(store)).runs)
        for block in (1, 5, 2, 0, 6, 4, 3):
            assert (
                await store.read(ledger, block * BLOCK_BYTES, 9) == data[block * BLOCK_BYTES :][:9]
            )
            kept = sum(map(len, store._runs._kept.values()))
            assert kept == store._runs.size_bytes <= 100_000 + largest
        assert store._runs.size_bytes > 0


async def test_readers_of_objects_do_not_wait_for_readers_of_a_table_that_stalls(
    tmp_path, monkeypatch
):
    pytest.importorskip("pyarrow")
    with ObjectServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        value = random.Random(1).randbytes(100_000)
        records = [Record(at, 1_700_000_000_000, None, value, []) for at in range(120)]
        data = b"".join(encode_batch([one], base_offset=one.offset) for one in records)
        file = table_file(tmp_path / "a", records)
        server.files["a"] = (tmp_path / "a").read_bytes()
        async with offloaded(memory_blobs(), data) as (store, ledger):
            in_s3 = file._replace(path=f"s3://{OBJECTS}/a")
            assert await store.write_recipe(ledger, [in_s3]) is None
            store.attach(ledger, len(data), is_local=False, is_tabled=True)
            other = await offloaded_ledger(store, DATA, b"")
            store._runs.rows.close()
            server.stalled.add("a")
            places = range(0, 2 * (REQUESTS_MAX + 4) * BLOCK_BYTES, 2 * BLOCK_BYTES)
            waiting = [asyncio.create_task(store.read(ledger, at, 9)) for at in places]
            assert await asyncio.to_thread(server.waiting.wait, 60)
            async with asyncio.timeout(60):  # there is no bound without the mend
                assert await store.read(other, 5, 9) == DATA[5:14]
            assert not any(one.done() for one in waiting)
            server.released.set()
            assert await asyncio.gather(*waiting) == [data[at : at + 9] for at in places]


async def opened(store: TieredLedgerStore) -> Any:
    (remote,) = store._remote.values()
    await remote.open()
    return remote._recipe


async def test_a_file_that_was_altered_and_restored_is_served_again_without_a_restart(tmp_path):
    pytest.importorskip("pyarrow")
    async with tabled(tmp_path, 40, 1_500) as (store, ledger, data, path):
        sound = path.read_bytes()
        altered = bytearray(sound)
        at = sound.index(data[-100:-1])
        altered[at] ^= 1
        path.write_bytes(altered)
        store._runs.rows.close()  # as after a restart
        for _ in range(2):
            with pytest.raises(DataCorrupt):
                await store.read(ledger, 0, len(data))
        restored = path.with_name("restored")
        restored.write_bytes(sound)
        restored.replace(path)
        assert await store.read(ledger, 0, len(data)) == data


async def test_readers_of_an_open_object_turn_to_the_recipe_that_has_replaced_it(tmp_path):
    """Another broker may replace it before this one hears of it."""
    pytest.importorskip("pyarrow")
    count = 2 * BLOCK_BYTES // 1_000
    records = [Record(at, 1_700_000_000_000, None, b"v" * 1_000, []) for at in range(count)]
    data = b"".join(
        encode_batch(records[at : at + 50], base_offset=at) for at in range(0, count, 50)
    )
    for call in ("read", "recover", "replace"):
        async with offloaded(memory_blobs(), data, cache_bytes_max=1) as (store, ledger):
            assert await store.write_recipe(ledger, [table_file(tmp_path / "a", records)]) is None
            assert await store.read(ledger, 0, 9) == data[:9]
            await store._blobs.delete(f"c/{object_name(ledger)}")
            if call == "read":
                found = await asyncio.gather(
                    *(store.read(ledger, at, 90_000) for at in range(0, len(data), 90_000))
                )
                assert b"".join(found) == data
            elif call == "recover":
                assert (await store.recover(ledger)).footer == b"footer"
            else:
                assert (
                    await store.write_recipe(ledger, [table_file(tmp_path / "a", records)]) is None
                )
            assert store.has_recipe(ledger)
            await store._blobs.delete(f"c/{recipe_name(ledger)}")


async def test_an_object_is_not_called_replaced_because_a_file_of_the_table_is_missing(tmp_path):
    """With the recipe of a replacement that a kill ended before it was recorded."""
    pytest.importorskip("pyarrow")
    records = [Record(at, 1_700_000_000_000, None, b"v" * 500, []) for at in range(100)]
    data = encode_batch(records, base_offset=0)
    async with offloaded(memory_blobs(), data) as (store, ledger):
        assert await store.write_recipe(ledger, [table_file(tmp_path / "a", records)]) is None
        later = table_file(tmp_path / "b", records)
        (tmp_path / "b").unlink()
        with pytest.raises(StorageUnavailable, match="restore the file"):
            await store.write_recipe(ledger, [later])
        assert not store.has_recipe(ledger)
        assert bytes(await store.read(ledger, 0, len(data))) == data


async def test_a_ledger_with_a_marker_after_each_small_transaction_keeps_its_object(tmp_path):
    """Each would be a request and memory of its own when the recipe is read."""
    pytest.importorskip("pyarrow")
    count = 2 * RUNS_MORE
    records = [Record(2 * at, 1_700_000_000_000, None, b"v" * 900, []) for at in range(count)]
    data = b"".join(
        encode_batch([one], base_offset=one.offset)
        + encode_batch([Record(0, 0, b"k", b"m", [])], base_offset=one.offset + 1)
        for one in records
    )
    async with offloaded(memory_blobs(), data) as (store, ledger):
        reason = await store.write_recipe(ledger, [table_file(tmp_path / "a", records)])
        assert reason == "it has a marker, or another batch to keep, every few KiB"
        assert [item.is_recipe async for item in store.list_objects()] == [False]
        assert bytes(await store.read(ledger, 0, len(data))) == data
