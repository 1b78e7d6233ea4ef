"""What a table says of its own progress, without a JVM."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from headrace.pipeline.catalog import (
    MAINTAINED,
    TOPIC_IDS_PROPERTY,
    Progress,
    TableName,
    lease,
    load_table,
    load_table_or_none,
    open_catalog,
    read_progress,
)
from headrace.pipeline.errors import (
    CatalogUnavailable,
    LeaseHeld,
    OptionInvalid,
    TableUnusable,
    TopicRecreated,
)
from headrace.pipeline.jars import AWS, PINNED, jars_for
from headrace.pipeline.jobs import maintain as maintenance
from headrace.pipeline.jobs.archive import ArchiveConfig, _Archive
from headrace.pipeline.jobs.maintain import MaintainConfig, _expire, _keep_offsets, run_maintain
from headrace.pipeline.jobs.typed_rounds import TypedRounds
from headrace.pipeline.publishing import Publisher
from headrace.pipeline.restarts import is_passing
from headrace.pipeline.warehouse import Warehouse

SCHEMA = Schema(
    NestedField(1, "topic", StringType()),
    NestedField(2, "partition", IntegerType()),
    NestedField(3, "offset", LongType()),
)
BY_PARTITION = PartitionSpec(
    PartitionField(1, 1000, IdentityTransform(), "topic"),
    PartitionField(2, 1001, IdentityTransform(), "partition"),
)


@pytest.fixture
def table(tmp_path):
    catalog = open_catalog(Warehouse(tmp_path))
    catalog.create_namespace("a")
    yield catalog.create_table("a.t", SCHEMA, partition_spec=BY_PARTITION)
    catalog.close()


def append(table, partition, first, count, recorded=None):
    rows = pa.table(
        {
            "topic": ["t"] * count,
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": range(first, first + count),
        }
    )
    properties = {"headrace.offsets": json.dumps(recorded)} if recorded else {}
    table.append(rows, snapshot_properties=properties)


def files_size(table):
    return sum(task.file.file_size_in_bytes for task in table.scan().plan_files())


def test_an_empty_table_has_not_begun(table):
    uuid = str(table.metadata.table_uuid)
    assert read_progress(table) == Progress({}, None, {}, None, uuid)


def test_progress_is_the_larger_of_files_and_recorded_ends(table):
    append(table, 0, 0, 10)
    append(table, 1, 0, 5, recorded={"t": {"1": 9}})
    append(table, 0, 10, 1_000)
    progress = read_progress(table)
    assert progress.offsets == {"t": {"0": 1_010, "1": 9}}
    assert progress.record_bytes == pytest.approx(files_size(table) / 1_015)
    assert progress.snapshot_id == table.current_snapshot().snapshot_id


def test_a_table_property_counts_when_its_snapshot_has_gone(table):
    append(table, 0, 0, 10)
    with table.transaction() as transaction:
        transaction.set_properties({"headrace.offsets": '{"t": {"0": 12}}'})
    assert read_progress(table).offsets == {"t": {"0": 12}}


def test_records_of_a_rolled_back_snapshot_are_archived_again(table):
    append(table, 0, 0, 10)
    good = table.current_snapshot().snapshot_id
    append(table, 0, 10, 10, recorded={"t": {"0": 25}})
    assert read_progress(table).offsets == {"t": {"0": 25}}
    table.manage_snapshots().set_current_snapshot(good).commit()
    assert read_progress(table).offsets == {"t": {"0": 10}}


def maintain(table):
    """Keep the ends in the table's properties, as before snapshots expire."""
    place = Warehouse(Path(table.catalog.properties["warehouse"].removeprefix("file://")))
    _keep_offsets(SetsProperties(table), place, TableName.parse("a.t"))
    table.refresh()


class SetsProperties:
    """Spark, as far as maintenance sets properties with it."""

    def __init__(self, table):
        self.table = table

    def sql(self, text):
        pairs = dict(re.findall(r"'([^']*)'='([^']*)'", text))
        with self.table.transaction() as transaction:
            transaction.set_properties(pairs)


def expire(table, *ids):
    table.maintenance.expire_snapshots().by_ids(list(ids)).commit()


def roll_back(table, snapshot):
    table.manage_snapshots().set_current_snapshot(snapshot).commit()


def appended(table, first, end):
    append(table, 0, first, 10, recorded={"t": {"0": end}})
    return table.current_snapshot().snapshot_id


class Compacts(SetsProperties):
    """And rewrites files, in a catalog that keeps one snapshot of a table."""

    def __init__(self, table):
        super().__init__(table)
        loads = SimpleNamespace(loadIcebergTable=lambda *_: SimpleNamespace(refs=dict))
        iceberg = SimpleNamespace(spark=SimpleNamespace(Spark3Util=loads))
        self._jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)))
        self._jsparkSession = None

    def sql(self, text):
        self.table.refresh()
        if "rewrite_data_files" not in text:
            return super().sql(text)
        append(self.table, 0, 0, 1)
        now = self.table.current_snapshot().snapshot_id
        expire(self.table, *(one.snapshot_id for one in self.table.snapshots()
                             if one.snapshot_id != now))  # fmt: skip
        counts = {"rewritten_data_files_count": 1, "added_data_files_count": 1}
        return SimpleNamespace(first=lambda: counts)


def test_what_only_snapshots_recorded_stays_known_where_compaction_leaves_one(
    table, tmp_path, monkeypatch
):
    """In Nessie; otherwise a recreated topic would not be noticed."""
    monkeypatch.setattr(maintenance, "can_stage", lambda _: False, raising=False)
    rows = table.scan().to_arrow()
    recorded = {"headrace.offsets": '{"t": {"0": 25}}', TOPIC_IDS_PROPERTY: '{"t": "id"}'}
    table.append(rows, snapshot_properties=recorded)
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    run_maintain(MaintainConfig(tmp_path, "a.t"), spark=Compacts(table))
    table.refresh()
    progress = read_progress(table)
    assert (progress.offsets, progress.topic_ids) == ({"t": {"0": 25}}, {"t": "id"})


def test_ends_that_maintenance_kept_do_not_count_after_a_rollback(table):
    good = appended(table, 0, 15)
    bad = appended(table, 20, 35)
    maintain(table)
    assert read_progress(table).offsets == {"t": {"0": 35}}
    roll_back(table, good)
    assert read_progress(table).offsets == {"t": {"0": 15}}
    expire(table, bad)
    assert read_progress(table).offsets == {"t": {"0": 15}}
    appended(table, 15, 25)
    assert read_progress(table).offsets == {"t": {"0": 25}}
    maintain(table)
    assert read_progress(table).offsets == {"t": {"0": 25}}


def test_ends_that_maintenance_kept_do_not_count_after_a_rollback_to_the_oldest_snapshot(table):
    old = appended(table, 0, 15)
    good = appended(table, 20, 35)
    maintain(table)
    expire(table, old)
    bad = appended(table, 40, 55)
    maintain(table)
    roll_back(table, good)
    expire(table, bad)
    assert read_progress(table).offsets == {"t": {"0": 35}}


@pytest.mark.parametrize("is_tagged", [False, True])
def test_ends_that_maintenance_kept_count_when_others_expire_its_snapshot(table, is_tagged):
    first = appended(table, 0, 15)
    maintained = appended(table, 20, 99)
    maintain(table)
    append(table, 0, 30, 5)
    between = table.current_snapshot().snapshot_id
    append(table, 0, 35, 5)
    if is_tagged:
        table.manage_snapshots().create_tag(maintained, "kept").commit()
        expire(table, first, between)
    else:
        expire(table, first, maintained, between)
    assert read_progress(table).offsets == {"t": {"0": 99}}


def test_topics_that_maintenance_kept_stay_known_after_a_rollback(table):
    append(table, 0, 0, 10)
    good = table.current_snapshot().snapshot_id
    rows = pa.table({"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [10]})
    table.append(rows, snapshot_properties={"headrace.topic-ids": '{"t": "A"}'})
    maintain(table)
    roll_back(table, good)
    assert read_progress(table)[:3] == ({"t": {"0": 10}}, good, {"t": "A"})


@pytest.mark.parametrize("text", ["{", '{"snapshot": 1}', '{"snapshot": null, "sequence": 1}'])
def test_the_snapshot_of_kept_ends_is_checked(table, text):
    with table.transaction() as transaction:
        transaction.set_properties({"headrace.offsets-at": text})
    with pytest.raises(TableUnusable, match=r"its property headrace\.offsets-at holds"):
        read_progress(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "holds '{', not a JSON object.*UNSET TBLPROPERTIES"),
        ("[1]", "not a JSON object"),
        ('{"t": 5}', "not offsets by topic and partition"),
        ('{"t": {"x": 5}}', "not offsets by topic and partition"),
        ('{"t": {"0": null}}', "not offsets by topic and partition"),
    ],
)
def test_a_property_that_was_altered_is_named_with_a_next_step(table, text, message):
    with table.transaction() as transaction:
        transaction.set_properties({"headrace.offsets": text})
    with pytest.raises(TableUnusable, match=message):
        read_progress(table)


def test_a_table_that_is_partitioned_otherwise_is_refused(table):
    append(table, 0, 0, 10)
    with table.update_spec() as update:
        update.add_field("offset", BucketTransform(4), "place")
    append(table, 1, 0, 7)
    assert read_progress(table).offsets == {"t": {"0": 10, "1": 7}}
    with table.update_spec() as update:
        update.remove_field("topic")
    with pytest.raises(TableUnusable, match="does not contain topic and partition"):
        read_progress(table)


def test_a_table_without_partitions_is_refused(table):
    catalog = table.catalog
    plain = catalog.create_table("a.plain", SCHEMA)
    append(plain, 0, 0, 10)
    with pytest.raises(TableUnusable, match=r"Restore it.*ADD PARTITION FIELD topic"):
        read_progress(plain)


def test_a_column_that_was_dropped_or_changed_is_named(table):
    with table.update_schema() as update:
        update.rename_column("offset", "place")
    with pytest.raises(TableUnusable, match="the column offset is missing, but must be a long"):
        read_progress(table)


def test_a_file_without_bounds_is_named(table):
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    append(table, 0, 0, 10)
    with pytest.raises(TableUnusable, match=r"\.parquet has no upper bound of offset"):
        read_progress(table)


@pytest.mark.parametrize("uri", ["s3:/bucket/w", "hdfs:/w", "file://host/w", "s3a:w", "s3://"])
def test_a_warehouse_at_an_unknown_uri_is_refused_and_no_folder_made(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionInvalid, match="is a URI that is not supported"):
        Warehouse.at(uri)
    with pytest.raises(OptionInvalid, match="is a URI"):
        Warehouse(Path(uri))
    with pytest.raises(OptionInvalid, match=r"needs a catalog.*--catalog rest:URL"):
        Warehouse.at("s3://bucket/w")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_be_no_warehouse_is_refused_with_the_next_step(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "warehouse"):
        for use in (Warehouse.spark_settings, open_catalog):
            with pytest.raises(OptionInvalid, match=r"cannot be used: .*file.* Give a directory"):
                use(Warehouse(place))


def test_a_file_that_is_no_catalog_is_refused(tmp_path):
    (tmp_path / "catalog.db").write_bytes(b"something else" * 100)
    with pytest.raises(OptionInvalid, match=r"catalog\.db is no catalog of tables"):
        open_catalog(Warehouse(tmp_path))


def test_a_catalog_in_a_directory_knows_files_in_s3(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-shown")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    place = Warehouse.at("s3://bucket/w/", kept_in=str(tmp_path))
    assert (place.catalog_file, str(place)) == (tmp_path / "catalog.db", "s3://bucket/w")
    settings = place.spark_settings()
    assert settings["spark.sql.catalog.headrace.warehouse"] == "s3://bucket/w"
    assert settings["spark.sql.catalog.headrace.s3.path-style-access"] == "true"
    assert settings["spark.sql.catalog.headrace.client.region"] == "eu-central-1"
    assert open_catalog(place).properties["warehouse"] == "s3://bucket/w"
    assert "not-to-be-shown" not in f"{settings} {place!r}"
    assert jars_for(place) == (*PINNED, AWS)
    assert jars_for(Warehouse.at(tmp_path)) == PINNED


def test_a_rest_catalog_gets_its_login_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    for variable in ("TOKEN", "OAUTH2_URI", "SCOPE"):
        monkeypatch.delenv(f"HEADRACE_CATALOG_{variable}", raising=False)
    monkeypatch.setenv("HEADRACE_CATALOG_CREDENTIAL", "me:not-to-be-shown")
    place = Warehouse.at("lake", kept_in="rest:https://catalog/api/")
    assert str(place) == "lake of the catalog https://catalog/api"
    settings, prefix = place.spark_settings(), "spark.sql.catalog.headrace"
    assert settings[f"{prefix}.credential"] == "env:HEADRACE_CATALOG_CREDENTIAL"
    assert (settings[f"{prefix}.uri"], settings[f"{prefix}.warehouse"]) == (place.rest, "lake")
    assert f"{prefix}.token" not in settings
    assert settings[f"{prefix}.rest.client.socket-timeout-ms"] == "30000"
    assert settings[f"{prefix}.token-exchange-enabled"] == "false"
    assert place.python_properties()["credential"] == "me:not-to-be-shown"
    assert "not-to-be-shown" not in f"{settings} {place!r}"
    other = Warehouse.at(place, "other")
    assert (other.catalog, other.folder) == ("other", place.folder)
    assert Warehouse.at("lake2", kept_in="rest:https://catalog/api").folder != place.folder


@pytest.mark.parametrize("url", ["catalog:81", "ftp://h", "https://me:pass@h", "https://h?token=x"])
def test_a_rest_catalog_of_no_plain_url_is_refused(url):
    with pytest.raises(OptionInvalid, match=r"Nothing was read or written\.") as caught:
        Warehouse.at("lake", kept_in=f"rest:{url}")
    assert "me:pass" not in str(caught.value)


def test_a_rest_catalog_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = Warehouse.at("lake", kept_in=f"rest:http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(CatalogUnavailable, match=r"does not answer.*Check that it runs"):
            open_catalog(place)


class Failing(BaseHTTPRequestHandler):
    """A REST catalog that is there when it is opened, and overloaded afterwards."""

    def do_GET(self):
        is_first = self.path.startswith("/v1/config")
        body = b'{"defaults": {}, "overrides": {}}' if is_first else b"{}"
        self.send_response(200 if is_first else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("state", ["overloaded", "gone"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda catalog, place, name: load_table_or_none(catalog, name),
        lambda catalog, place, name: Publisher(None, name, catalog)._staged("id"),
        lambda catalog, place, name: _keep_offsets(None, place, name),
        lambda catalog, place, name: _expire(None, MaintainConfig(place), name, place),
        lambda catalog, place, name: _Archive._progress(
            SimpleNamespace(_catalog=catalog, _table=name)
        ),
    ],
)
def test_a_rest_catalog_that_fails_between_two_rounds_is_a_reason_to_try_again(
    state, ask, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    place = Warehouse.at("lake", kept_in=f"rest:http://127.0.0.1:{server.server_port}")
    try:
        catalog = open_catalog(place)
        if state == "gone":
            server.shutdown()
            server.server_close()
        with pytest.raises(CatalogUnavailable, match="the same command continues") as failed:
            ask(catalog, place, TableName.parse("a.t"))
        assert is_passing(failed.value)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_maintenance_that_finds_no_catalog_ends_no_archive(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = Warehouse.at("lake", kept_in=f"rest:http://127.0.0.1:{closed.getsockname()[1]}")
        config = ArchiveConfig("127.0.0.1:1", "t", place, "a.t")
        _Archive._maintain(
            SimpleNamespace(
                _config=config, _table=TableName.parse("a.t"), _spark=None, _on_maintenance=None
            )
        )
    assert caplog.messages == ["headrace.a.t: maintenance failed"]


class Undecodable:
    """A frame of one row that cannot be decoded."""

    def where(self, _condition):
        return self

    def isEmpty(self):  # noqa: N802 - Spark's name
        return False


def test_a_side_table_of_an_earlier_topic_of_that_name_is_refused(tmp_path):
    place, name = Warehouse(tmp_path), TableName.parse("a.t")
    catalog = open_catalog(place)
    catalog.create_namespace("a_undecodable")
    side = catalog.create_table("a_undecodable.t", SCHEMA, partition_spec=BY_PARTITION)
    rows = pa.table({"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [7]})
    side.append(rows, snapshot_properties={TOPIC_IDS_PROPERTY: '{"t": "OLD"}'})
    rounds = TypedRounds(None, name, catalog, place)
    properties = {TOPIC_IDS_PROPERTY: '{"t": "NEW"}'}
    with pytest.raises(TopicRecreated, match=r"a_undecodable\.t holds records of the old"):
        rounds._keep_undecodable(Undecodable(), {"t": {"0": 0}}, {"t": {"0": 9}}, properties)
    catalog.close()


def test_a_file_uri_is_the_path_it_names(tmp_path):
    assert Warehouse.at(f"file://{tmp_path}/a%20b").folder == tmp_path / "a b"
    assert Warehouse.at(f"file:{tmp_path}") == Warehouse(tmp_path)
    assert Warehouse.at("warehouse") == Warehouse(Path("warehouse"))


def test_one_process_writes_a_table_at_a_time(tmp_path):
    name = TableName.parse("a.t")
    with lease(Warehouse(tmp_path), name), lease(Warehouse(tmp_path), name, MAINTAINED):
        with (
            pytest.raises(LeaseHeld, match="is being maintained by process"),
            lease(Warehouse(tmp_path), name, MAINTAINED),
        ):
            pass
        with (
            pytest.raises(LeaseHeld, match="is being written by process"),
            lease(Warehouse(tmp_path), name),
        ):
            pass
        with lease(Warehouse(tmp_path), TableName.parse("a.other")):
            pass
    with lease(Warehouse(tmp_path), name):
        pass


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from headrace.pipeline.catalog import TableName, lease
from headrace.pipeline.warehouse import Warehouse
with lease(Warehouse(Path(sys.argv[1])), TableName.parse("a.t")):
    print(subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL).pid, flush=True)
    time.sleep(600)
"""


def test_a_lease_ends_with_its_process_also_if_that_is_killed_and_its_child_lives_on(tmp_path):
    name = TableName.parse("a.t")
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(LeaseHeld, match=f"by process {holder.pid}"):
                lease(Warehouse(tmp_path), name).__enter__()
            holder.kill()
            holder.wait()
            with lease(Warehouse(tmp_path), name):
                os.kill(child, 0)
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


def test_a_warehouse_where_no_lease_can_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / ".leases").touch()
    for folder in (tmp_path / "file", tmp_path / "lake"):
        with pytest.raises(OptionInvalid, match=r"cannot be used.*Give a directory"):
            lease(Warehouse(folder), TableName.parse("a.t")).__enter__()


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OptionInvalid, match=r"no table headrace\.a\.never in the warehouse"):
        load_table(Warehouse(tmp_path), TableName.parse("a.never"))


def test_table_names():
    assert TableName.parse("lake.a.t").in_spark == "lake.a.t"
    assert TableName.parse("a.t").in_spark == "headrace.a.t"
    quoted = TableName.parse("a.`my-topic.v1`")
    assert quoted == TableName("headrace", "a", "my-topic.v1")
    assert TableName.parse(quoted.in_spark) == quoted
    assert TableName.of_topic("9").in_spark == "headrace.headrace.`9`"
    assert TableName.of_topic("«a-b»9").in_spark == "headrace.`tenant_a-b`.`9`"
    for wrong in ("t", "a.b.c.d", "a.t;drop", "", "a.my-topic", "a.`b/c`", "a.`", "a.``", "a b.c"):
        with pytest.raises(OptionInvalid):
            TableName.parse(wrong)


def test_the_latest_recorded_id_of_a_topic_counts(table):
    def record(first, **topic_ids):
        rows = pa.table({"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [first]})
        table.append(rows, snapshot_properties={"headrace.topic-ids": json.dumps(topic_ids)})

    append(table, 0, 0, 10)
    assert read_progress(table).topic_ids == {}
    with table.transaction() as transaction:
        transaction.set_properties({"headrace.topic-ids": '{"t": "A", "u": "U"}'})
    assert read_progress(table).topic_ids == {"t": "A", "u": "U"}
    record(10, t="B")
    record(11, t="C")
    record(12, v="V")
    assert read_progress(table).topic_ids == {"t": "C", "u": "U", "v": "V"}


def test_many_open_a_new_catalog_at_once(tmp_path):
    place = Warehouse(tmp_path / "new")
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: open_catalog(place), range(8)))
    assert [catalog.list_namespaces() for catalog in opened] == [[]] * 8
