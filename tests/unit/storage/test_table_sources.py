"""Rows of a table's files in S3: the same as in a directory, or an error, in bounded time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.object_server import BUCKET, ObjectServer
from tests.unit.storage.test_recipe import batches_of, plan_of, rebuilt, table_file

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.storage.tiering import table_sources
from headrace.storage.tiering.blob_store import BlobLimits
from headrace.storage.tiering.table_rows import TableRows
from headrace.storage.tiering.table_sources import TableSources, Turns

pytest.importorskip("pyarrow")

QUICK = BlobLimits(timeout_ms=30_000, retries_max=0)


@pytest.fixture
def server(monkeypatch):
    with ObjectServer() as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def stored(server, tmp_path):
    """(a ledger's bytes, its file in a directory, the same in S3)."""
    pairs = batches_of(5, 60)
    local = table_file(tmp_path / "a.parquet", [one for _, records in pairs for one in records])
    server.files["lake/a.parquet"] = (tmp_path / "a.parquet").read_bytes()
    remote = local._replace(path=f"s3://{BUCKET}/lake/a.parquet")
    return b"".join(batch for batch, _ in pairs), local, remote


def test_a_file_in_s3_gives_the_bytes_that_it_gives_in_a_directory(stored, server):
    data, local, remote = stored
    rows = TableRows(TableSources(QUICK))
    assert rows.sources.digest(remote) == remote.sha256
    (plan, kept), (other, _) = plan_of(data, [remote], rows), plan_of(data, [local], rows)
    assert plan.runs == other.runs
    assert plan.borrowed_records
    assert rebuilt(plan, kept, [remote], rows) == data
    assert server.bytes_max <= table_sources.READ_BYTES
    rows.close()


def test_a_large_file_is_read_in_ranges(server, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.storage.tiering.table_rows.READ_BYTES", 64 << 10)
    records = [one for _, batch in batches_of(7, 1_500) for one in batch]
    pages = {"data_page_size": 16 << 10, "write_batch_size": 4, "use_dictionary": False}
    local = table_file(tmp_path / "a.parquet", records, **pages)
    server.files["a"] = (tmp_path / "a.parquet").read_bytes()
    assert local.size_bytes > 2 << 20
    rows = TableRows(TableSources(QUICK))
    found = rows.read(local._replace(path=f"s3://{BUCKET}/a"), 10, 20)
    assert found.values == [one.value for one in records[10:30]]
    assert server.bytes_max <= local.size_bytes // 10  # a page, or what is read at a time
    rows.close()


def _deleted(server: ObjectServer) -> None:
    server.files.clear()


def _refused(server: ObjectServer) -> None:
    server.refused.add("lake/a.parquet")


def _cut(server: ObjectServer) -> None:
    server.files["lake/a.parquet"] = server.files["lake/a.parquet"][:-1]


@pytest.mark.parametrize(("harm", "error", "is_missing"), [
    (_deleted, StorageUnavailable, True), (_refused, StorageUnavailable, False),
    (_cut, DataCorrupt, None),
])  # fmt: skip
def test_a_file_that_cannot_be_had_is_an_error_for_all_that_ask(
    stored, server, harm, error, is_missing
):
    data, _, remote = stored
    rows = TableRows(TableSources(QUICK))
    plan, kept = plan_of(data, [remote], rows)
    rows.forget([remote])
    harm(server)
    for asked in (
        lambda: rebuilt(plan, kept, [remote], rows),
        lambda: rows.sources.check_presence(remote),
        lambda: rows.sources.digest(remote),
        lambda: plan_of(data, [remote], rows),
    ):
        with pytest.raises(error, match=r"lake/a\.parquet") as caught:
            asked()
        assert caught.value.fields.get("is_missing") == is_missing
        assert "a-secret-of-nobody" not in str(caught.value)
    rows.close()


def test_a_file_that_is_deleted_or_cut_while_it_is_open_is_an_error(stored, server, monkeypatch):
    """By what is read next: what was decoded before may be served, it was right."""
    monkeypatch.setattr("headrace.storage.tiering.table_rows.BATCH_ROWS_MAX", 20)
    _, _, remote = stored
    for harm in (_deleted, _refused):
        rows = TableRows(TableSources(QUICK))
        held = dict(server.files)
        rows.read(remote, 0, 5)
        harm(server)
        rows.forget([remote])
        with pytest.raises(StorageUnavailable):
            rows.read(remote, 30, 5)
        server.files |= held
        server.refused.clear()
        assert len(rows.read(remote, 30, 5).offsets) == 5
        rows.close()


def test_a_stalled_file_ends_in_bounded_time(stored, server):
    _, _, remote = stored
    rows = TableRows(TableSources(BlobLimits(200, 200, 1, 200)))
    server.stalled.add("lake/a.parquet")
    with pytest.raises(StorageUnavailable, match="not served"):
        rows.read(remote, 0, 5)
    rows.close()


@pytest.mark.timeout(120)
def test_a_reader_that_waits_for_a_file_holds_up_no_reader_of_another(stored, server):
    """With one turn to decode in all: it is not held while a request is on its way."""
    _, local, remote = stored
    rows = TableRows(TableSources(QUICK))
    rows.turns = Turns(1)
    server.stalled.add("lake/a.parquet")
    server.files["b"] = server.files["lake/a.parquet"]
    other = remote._replace(path=f"s3://{BUCKET}/b")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(rows.read, remote, 0, 5)
        assert server.waiting.wait(60)
        expected = rows.read(local, 3, 7)
        assert rows.read(other, 3, 7) == expected
        assert not waiting.done()
        server.released.set()
        assert waiting.result(60) == rows.read(local, 0, 5)
    rows.close()


def test_a_cursor_in_use_is_not_kept_once_its_file_was_forgotten(stored, server):
    """Else rows of the damaged file would be given after it was restored."""
    _, local, remote = stored
    rows = TableRows(TableSources(QUICK))
    server.stalled.add("lake/a.parquet")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(rows.read, remote, 0, 5)
        assert server.waiting.wait(60)
        rows.forget([remote])
        server.released.set()
        assert len(waiting.result(60).offsets) == 5
    before = server.requests["lake/a.parquet"]
    assert rows.read(remote, 0, 5) == rows.read(local, 0, 5)
    assert server.requests["lake/a.parquet"] > before
    rows.close()


def test_a_whole_file_is_read_no_further_once_the_broker_stops(stored, server):
    """The process waits for its threads when it ends, and a file may be large."""
    _, _, remote = stored
    sources = TableSources(QUICK)
    server.stalled.add("lake/a.parquet")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sources.digest, remote)
        assert server.waiting.wait(60)
        sources.close()
        server.released.set()
        with pytest.raises(StorageUnavailable, match="is stopping"):
            waiting.result(60)
