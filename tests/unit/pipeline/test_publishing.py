"""Which tables take the place of rows, as far as that is decided without Spark."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import pipeline_looks, pipeline_proof
from headrace.pipeline import publishing
from headrace.pipeline.catalog import TableName
from headrace.pipeline.errors import OptionInvalid, TableUnusable
from headrace.pipeline.jobs.layout import Layout, ensure_table
from headrace.pipeline.jobs.quality import QualityReport, store_violations
from headrace.pipeline.jobs.tables import _reason
from headrace.pipeline.jobs.windows import Window
from headrace.pipeline.publishing import Publisher

ARCHIVE = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


class Spark:
    """A session whose one table has these columns; notes its statements."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)

    def table(self, _name: str) -> Any:
        return SimpleNamespace(columns=self.columns)


def test_violations_do_not_replace_the_records_of_an_archive():
    """With the columns that it lacks, each of its rows would be one of no expectations."""
    spark = Spark(ARCHIVE)
    window = Window({"orders": {"0": 0}}, {"orders": {"0": 9}}, {})
    found = SimpleNamespace()
    found.selectExpr = lambda *_: found
    report = QualityReport("orders", "orders", window, 9, {}, {}, found)
    with pytest.raises(OptionInvalid, match="is for other rows: it has no column expectation"):
        store_violations(report, "headrace.archive", spark=spark)
    words = {statement.split()[0] for statement in spark.statements}
    assert words == {"CREATE"}, spark.statements


class Overtaken:
    """Iceberg's own object of a table: so many changes of its branches fail, as others commit."""

    def __init__(self, count: int) -> None:
        self.left, self.limits = count, dict[str, int]()

    def snapshot(self, _branch: str) -> None:
        return None

    def manageSnapshots(self) -> Any:  # noqa: N802 - Iceberg's name
        return self

    def setMaxRefAgeMs(self, branch: str, age_ms: int) -> Any:  # noqa: N802 - Iceberg's name
        return SimpleNamespace(commit=lambda: self.commit(branch, age_ms))

    def commit(self, branch: str, age_ms: int) -> None:
        if self.left:
            self.left -= 1
            raise RuntimeError("CommitFailedException: Table metadata refresh is required")
        self.limits[branch] = age_ms


def test_a_branch_is_renewed_though_others_commit_meanwhile(monkeypatch):
    """Else their commit would end the replacement of rows, which begins again after one."""
    table = Overtaken(3)
    monkeypatch.setattr(publishing, "java_table", lambda *_: table)
    publishing._renew(None, TableName.parse("headrace.t"), "mine")
    assert table.limits == {"mine": 24 * 3_600_000}
    table.left = publishing.REPLACEMENTS_MAX
    with pytest.raises(RuntimeError, match="CommitFailed"):
        publishing._renew(None, TableName.parse("headrace.t"), "mine")


class Catalog:
    """One that has this configuration, and the one table."""

    def __init__(self, table: Any = None, **config: str) -> None:
        self.properties = {"uri": "http://catalog", **config}
        self._table = table

    def load_table(self, _name: object) -> Any:
        return self._table


def test_a_catalog_that_makes_staged_snapshots_current_is_refused():
    """The commit of the staged one compared nothing, so it may have undone another's."""
    summary = SimpleNamespace(additional_properties={"wap.id": "mine"})
    snapshots = [SimpleNamespace(snapshot_id=1, summary=None)]
    snapshots.append(SimpleNamespace(snapshot_id=2, summary=summary))
    for current, is_refused in ((2, True), (1, False), (None, False)):
        table = SimpleNamespace(
            snapshots=lambda: snapshots, metadata=SimpleNamespace(current_snapshot_id=current)
        )
        publisher = Publisher(None, TableName.of_topic("orders"), Catalog(table))
        if is_refused:
            with pytest.raises(TableUnusable, match="in another catalog"):
                publisher._staged("mine")
        else:
            assert publisher._staged("mine") == 2


def test_nessie_gets_no_upsert_tables():
    nessie = Catalog(**{"nessie.is-nessie-catalog": "true"})
    with pytest.raises(OptionInvalid, match="Nothing was written"):
        ensure_table(None, nessie, None, TableName.of_topic("orders"), Layout("upsert", "zstd"))


class Nessie(BaseHTTPRequestHandler):
    """Its configuration alone."""

    def do_GET(self) -> None:
        body = b'{"defaults": {}, "overrides": {"nessie.is-nessie-catalog": "true"}}'
        self.send_response(200 if self.path.startswith("/v1/config") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("module", "name", "option"),
    [(pipeline_proof, "quality", "--violations"), (pipeline_looks, "trace", "--events")],
)
def test_rows_that_replace_others_are_refused_by_nessie_before_anything_is_read(
    module, name, option, tmp_path, monkeypatch
):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "spark_for", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.setattr(module, "describe_topics", lambda *_, **__: None)
    (tmp_path / "expect.toml").write_text("[orders]\nchecks = {no = 'false'}")
    session = SimpleNamespace(client_config={}, bootstrap="127.0.0.1:1", objects=None)
    given = ["--expect", str(tmp_path / "expect.toml")] if name == "quality" else []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Nessie)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        catalog = f"rest:http://127.0.0.1:{server.server_port}"
        place = ["--warehouse", "lake", "--catalog", catalog]
        done = CliRunner().invoke(
            getattr(module, name), ["orders", option, "a.t", *given, *place], obj=session
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert isinstance(done.exception, OptionInvalid), (done.output, done.exception)
    assert "headrace.a.t cannot be replaced: its catalog, Nessie" in str(done.exception)


def test_a_failure_of_spark_is_told_by_what_java_says_of_it():
    error = Exception(
        "An error occurred while calling o1.append.\n: org.apache.spark.SparkException: Failed\n"
        "\tat org.apache.spark.A\nCaused by: java.io.IOException: middle\n"
        "Caused by: software.amazon.S3Exception: Access Denied\n\t... 2 more"
    )
    assert _reason(error) == (
        "Exception: An error occurred while calling o1.append. org.apache.spark.SparkException:"
        " Failed; software.amazon.S3Exception: Access Denied"
    )
    assert _reason(ValueError()) == "ValueError: "
