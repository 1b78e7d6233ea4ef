"""What only the SQLite store promises: a quick start, an idle process that stays idle."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from tests.clocks import HandClock

from headrace.errors import DataCorrupt, MetadataUnavailable, VersionConflict
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.sqlite_file import TOMBSTONE_MS, SqliteFile
from headrace.metadata.store import ABSENT, MultiOperation


async def test_nothing_is_polled_without_a_watch(tmp_path):
    store = await SqliteMetadataStore.open(tmp_path / "m", HandClock(1_000_000), poll_ms=1)
    polls = []
    poll = store._file.poll
    store._file.poll = lambda: polls.append(poll())
    await asyncio.sleep(0.02)
    assert not polls
    watch = store.watch("/")
    await asyncio.sleep(0.02)
    assert polls
    del watch
    gc.collect()
    await asyncio.sleep(0.02)
    polls.clear()
    await asyncio.sleep(0.02)
    assert not polls
    await store.close()


async def test_watchers_get_an_error_on_damage_and_survive_a_passing_failure(tmp_path):
    store = await SqliteMetadataStore.open(tmp_path / "m", HandClock(1_000_000), poll_ms=1)
    failures = [MetadataUnavailable("busy"), DataCorrupt("damaged")]

    def poll():
        raise failures.pop(0)

    store._file.poll = poll
    with pytest.raises(DataCorrupt):
        await asyncio.wait_for(anext(store.watch("/")), 10)
    assert not failures
    await store.close()


async def test_closing_ends_its_thread_and_leaves_one_file(tmp_path):
    before = set(threading.enumerate())  # another store's may be ending still
    store = await SqliteMetadataStore.open(tmp_path / "deep" / "m", HandClock(1_000_000))
    await store.put("/a", b"", ABSENT, ephemeral=True)
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "headrace-metadata"
    await store.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m"]


async def test_a_call_that_is_cancelled_does_not_disturb_the_next(tmp_path):
    store = await SqliteMetadataStore.open(tmp_path / "m", HandClock(1_000_000))
    call = asyncio.ensure_future(store.put("/a", b"", ABSENT))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await store.get("/a")).version == 0
    await store.close()


async def test_changes_that_wait_share_a_commit_and_each_is_whole_or_not_at_all(tmp_path):
    store = await SqliteMetadataStore.open(tmp_path / "m", HandClock(1_000_000))
    await store.put("/taken", b"", ABSENT)
    statements = []
    await store._run(lambda: store._file._db.set_trace_callback(statements.append))
    go_on = threading.Event()
    changes = [[MultiOperation(f"/{number}", b"", ABSENT)] for number in range(50)]
    changes[20] = [MultiOperation("/20", b"", ABSENT), MultiOperation("/taken", b"", ABSENT)]
    changes[30] = [MultiOperation("/29", b"new", 0), MultiOperation("/29", None, 1)]
    blocked = store._run(go_on.wait)
    waiting = [asyncio.ensure_future(store.multi(operations)) for operations in changes]
    reader = asyncio.ensure_future(store.list("/"))
    later = asyncio.ensure_future(store.put("/later", b"", ABSENT))
    await asyncio.sleep(0)
    go_on.set()
    await blocked
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[20], VersionConflict)
    assert outcomes[30] == [1, ABSENT]
    assert all(one == [0] for at, one in enumerate(outcomes) if at not in {20, 30})
    found = {entry.key for entry in await reader}
    assert found == {"/taken", *(f"/{at}" for at in range(50) if at not in {20, 29, 30})}
    assert await later == 0
    assert statements.count("COMMIT") == 2
    await store.close()
    other = SqliteFile(tmp_path / "m", HandClock(1_000_000), 100)
    sequences = [row[0] for row in other._db.execute("SELECT sequence FROM facts")]
    assert len(set(sequences)) == len(sequences) == 50
    assert other._one("SELECT value FROM counters WHERE name = 'sequence'") == max(sequences)
    other.close()


def test_tombstones_are_dropped_after_a_day_and_sequence_numbers_go_on(tmp_path):
    clock = HandClock(1_000_000)
    file = SqliteFile(tmp_path / "m", clock, 100)
    file.write([[MultiOperation("/a", b"", ABSENT), MultiOperation("/a", None, 0)]])
    file.close()
    clock.ms += TOMBSTONE_MS
    file = SqliteFile(tmp_path / "m", clock, 100)
    assert file._one("SELECT count(*) FROM facts") == 1
    file.close()
    clock.ms += 1
    file = SqliteFile(tmp_path / "m", clock, 100)
    assert file._one("SELECT count(*) FROM facts") == 0
    file.write([[MultiOperation("/b", b"", ABSENT)]])
    assert file._one("SELECT sequence FROM facts") == 3
    file.close()


def test_changes_of_other_writers_are_found_once_and_in_order(tmp_path):
    clock = HandClock(1_000_000)
    mine, other = (SqliteFile(tmp_path / "m", clock, 100) for _ in range(2))
    other.write([[MultiOperation("/b", b"", ABSENT), MultiOperation("/a", b"", ABSENT)]])
    mine.poll()
    assert mine.changed == ["/b", "/a"]
    mine.changed.clear()
    mine.poll()
    assert mine.changed == []
    mine.write([[MultiOperation("/mine", b"", ABSENT)]])
    other.write([[MultiOperation("/b", None, 0)]])
    assert mine.changed == ["/mine"]
    mine.poll()
    assert mine.changed == ["/mine", "/b"]
    mine.close()
    other.close()
