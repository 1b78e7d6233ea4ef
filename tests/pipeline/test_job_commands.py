"""The commands of jobs: what they print, what they write, and the exit codes schedulers see."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from tests.pipeline.process_trees import OnTerminal
from tests.pipeline.test_delivery_proof import PARTITIONS, commit, publish

from headrace.cli import pipeline_looks, pipeline_proof
from headrace.cli.main import cli
from headrace.pipeline.demo.clients import create_topic


@pytest.fixture
def numbered_topic(broker, topic):
    name = f"{topic}-stored"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, name, PARTITIONS, settings)
    publish(broker, name, [("shop", n, n % PARTITIONS) for n in range(90) if n != 50])
    return name


def headrace(broker, *arguments):
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, "pipeline", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env=os.environ
    )


def test_a_proof_is_a_certificate_and_an_exit_code(broker, numbered_topic, tmp_path):
    group = f"{numbered_topic}-readers"
    commit(broker, numbered_topic, group, {0: 30, 1: 30, 2: 20})
    path = tmp_path / "certificate.json"
    master = ("--master", "local[2]")
    results = f"{numbered_topic}-results"
    create_topic(broker, results, 1, {"retention.ms": "-1"})
    kept = ("--certificate", str(path), "--results", results)
    given = ("--sent", "shop=0:89", "--group", group, "--idempotent", *kept, *master)
    done = headrace(broker, "proof", numbered_topic, *given)
    assert done.returncode == 1, done.stderr
    assert "shop: 1 not stored (sequences 50)" in done.stderr
    assert f"{group}: not acknowledged: {numbered_topic}-2: offsets 20 to 28" in done.stderr
    assert "sent 90 | stored 89 | sent by idempotent producers 89, stored 89" in done.stdout
    read = [sys.executable, "-m", "headrace", "--bootstrap", broker, "consume", results]
    sent = subprocess.run(
        [*read, "--count", "1"], capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(sent.stdout)["summary"].startswith("failed: sent 90 | stored 89")
    assert json.loads(sent.stdout)["result"] == json.loads(path.read_text())
    verified = headrace(broker, "verify", str(path), "--json")
    assert verified.returncode == 1
    assert json.loads(verified.stdout) == {"intact": True, "wrong": [], "verdict": "failed"}
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"verdict": "proven", "problems": []}))
    assert "not intact" in headrace(broker, "verify", str(path)).stderr


def test_a_proof_compares_with_another_cluster_and_a_database(broker, numbered_topic, tmp_path):
    """The other cluster is this one: the command does not know."""
    database, path = tmp_path / "shop.db", tmp_path / "certificate.json"
    with sqlite3.connect(database) as rows:
        rows.execute("CREATE TABLE sent (n INTEGER)")
        rows.executemany("INSERT INTO sent VALUES (?)", [(n,) for n in range(89)])
    rows.close()
    given = ["--database", f"jdbc:sqlite:{database}", "--database-table", "sent", "--row-id", "n"]
    done = headrace(broker, "proof", numbered_topic, *given)
    assert (done.returncode, "--record-id" in done.stderr) == (2, True), done.stderr
    given += ["--record-id", "substr(cast(value AS string), 7)", "--certificate", str(path)]
    given += ["--copy", broker, "--master", "local[2]"]
    done = headrace(broker, "proof", numbered_topic, *given)
    assert done.returncode == 0, done.stderr
    assert f"stored 89 | equal in topic {numbered_topic} at {broker} 89 | equal in" in done.stdout
    assert headrace("127.0.0.1:1", "verify", str(path)).returncode == 0


def test_the_page_of_a_topic_is_made_by_one_command(broker, numbered_topic, tmp_path):
    group = f"{numbered_topic}-readers"
    commit(broker, numbered_topic, group, {0: 30, 1: 30, 2: 20})
    out = tmp_path / "page"
    done = headrace(
        broker, "page", numbered_topic, "--group", group, "--watch", "1s", "--out", str(out),
        "--master", "local[2]",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} >= {"index.html", "flow.png", "lag-0.png"}
    assert "not proven" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--sent", "shop"], 2, "--sent shop: not NAME=FIRST:LAST; nothing was read"),
        (["--sent", "shop=0:9", "--sent", "shop=0:9"], 2, "'shop' is given twice"),
        (["--sent", "@nothing.json"], 2, "File 'nothing.json' does not exist"),
        (["--table", "shop.orders"], 2, "--table and --warehouse together"),
        (["--group", "nobody"], 3, "no group 'nobody'"),
    ],
)
def test_what_a_proof_cannot_be_made_with_is_refused_before_spark_starts(
    broker, numbered_topic, monkeypatch, tmp_path, given, code, said
):
    for command, module in (("proof", pipeline_proof), ("page", pipeline_looks)):
        monkeypatch.setattr(module, "spark_for", None)
        out = ["--out", str(tmp_path)] * (command == "page")
        words = ["--bootstrap", broker, "pipeline", command, numbered_topic, *given, *out]
        done = CliRunner().invoke(cli, words)
        assert (done.exit_code, said in done.output) == (code, True), done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[orders", "expectations cannot be read"),
        ('["{}"]\nrequird = ["key"]', "Unknown expectation 'requird'"),
        ("[other]", "expects nothing of {}"),
    ],
)
def test_a_file_of_expectations_is_refused_with_its_name_and_the_table_to_add(
    broker, topic, tmp_path, text, said
):
    name = f"{topic}.eu"
    create_topic(broker, name, 1, {})
    path = tmp_path / "expect.toml"
    path.write_text(text.replace("{}", name))
    done = headrace(broker, "quality", name, "--expect", str(path))
    assert (done.returncode, str(path) in done.stderr) == (2, True), done.stderr
    assert said.replace("{}", name) in done.stderr
    assert f'["{name}"]' in done.stderr


def on_terminal(broker, *arguments):
    return OnTerminal("--bootstrap", broker, "pipeline", *arguments)


def test_a_bar_on_the_terminal_counts_the_tasks_of_a_job(broker, numbered_topic):
    given = ("proof", numbered_topic, "--sent", "shop=0:89", "--master", "local[2]")
    job = on_terminal(broker, *given)
    assert job.end() == 1, job.drawn
    assert has_bar(job.drawn)
    assert b"headrace pipeline resend" in job.drawn.splitlines()[-1]


def has_bar(drawn):
    shown = [tuple(map(int, one)) for one in re.findall(rb"(\d+)/(\d+)", drawn)]
    return b"Spark tasks" in drawn and any(done and done <= total for done, total in shown)


def test_jobs_of_tables_and_plans_draw_the_bar_of_their_tasks(broker, numbered_topic, tmp_path):
    given = ("--topic", numbered_topic, "--warehouse", str(tmp_path), "--master", "local[2]")
    for name in ("archive", "reconcile"):
        job = on_terminal(broker, "run", name, *given)
        assert job.end() == 0, job.drawn
        assert has_bar(job.drawn), job.drawn
    assert b"has each of these records once" in job.drawn
    create_topic(broker, f"{numbered_topic}-copy", 1, {"retention.ms": "-1"})
    given = ("--to", f"{numbered_topic}-copy", "--dry-run", "--master", "local[2]")
    planned = on_terminal(broker, "replay", numbered_topic, *given)
    assert planned.end() == 0, planned.drawn
    assert has_bar(planned.drawn), planned.drawn


def test_an_interrupted_job_leaves_nothing_and_is_run_again(
    broker, numbered_topic, tmp_path, spark, warehouse, table
):
    expected = tmp_path / "expect.toml"
    expected.write_text(f'["{numbered_topic}".checks]\n"none" = "false"\n')
    kept = ("--violations", f"headrace.{table}", "--warehouse", str(warehouse.folder))
    given = ("quality", numbered_topic, "--expect", str(expected), *kept, "--master", "local[2]")
    for is_twice in (False, True):
        job = on_terminal(broker, *given)
        job.read_until(b"Spark tasks")  # the bar is there, and its thread about to begin
        job.end_by(signal.SIGINT)
        if is_twice:
            job.read_until(b"press Ctrl-C again")
            job.end_by(signal.SIGINT)
        assert job.end() == 130, job.drawn
        assert b"Nothing is lost: the same command" in job.drawn
        assert b"Traceback" not in job.drawn
    assert headrace(broker, *given).returncode == 1
    assert spark.table(f"headrace.{table}").count() == 89
    assert [row.name for row in spark.table(f"headrace.{table}.refs").collect()] == ["main"]


def test_a_replay_that_is_interrupted_ends_with_its_chunk_and_is_continued(
    broker, numbered_topic, contents
):
    target = f"{numbered_topic}-again"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, target, 1, settings)
    given = ("replay", numbered_topic, "--to", target, "--master", "local[1]")
    job = on_terminal(broker, *given, "--rate", "5")
    job.read_until(rb"\b[1-9]/89|[1-7]\d/89")
    job.end_by(signal.SIGINT)
    assert job.end() == 130, job.drawn
    assert b"stopping after this chunk" in job.drawn
    assert 0 < len(contents(target)) < 89
    done = headrace(broker, *given)
    assert done.returncode == 0, done.stderr
    assert sorted(value for *_, value in contents(target)) == sorted(
        value for *_, value in contents(numbered_topic)
    )


def test_a_trace_counts_the_records_of_each_topic_once_and_says_how_to_do_without_http(
    broker, numbered_topic
):
    """Its second topic is named twice, and the first one again."""
    target = f"{numbered_topic}-again"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, target, PARTITIONS, settings)
    publish(broker, target, [("shop", n, n % PARTITIONS) for n in range(9)])
    given = ("trace", numbered_topic, "--message", "cast(value AS string)", "--json")
    given += ("--http", "127.0.0.1:1", "--master", "local[2]")
    refused = headrace(broker, *given)
    assert refused.returncode == 4, refused.stderr
    assert "--messages-max 0" in refused.stderr
    through = [part for name in (target, target, numbered_topic) for part in ("--through", name)]
    done = headrace(broker, *given, *through, "--messages-max", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["latencies"]
    assert {(one["topic"], one["count"]) for one in found} == {(target, 9)}


def test_a_cache_folder_that_cannot_be_used_is_named_with_the_next_step(
    broker, numbered_topic, tmp_path, monkeypatch
):
    folder = tmp_path / "cache"
    folder.write_text("a file")
    monkeypatch.setenv("HEADRACE_CACHE", str(folder))
    done = headrace(broker, "proof", numbered_topic, "--sent", "shop=0:89")
    assert done.returncode == 1
    assert f"the cache folder {folder} is of no use" in done.stderr, done.stderr
    assert "HEADRACE_CACHE=FOLDER" in done.stderr


def test_a_comparison_of_no_records_ends_with_the_code_of_nothing_to_check(broker, topic, tmp_path):
    name, warehouse = f"{topic}-empty", ("--warehouse", str(tmp_path))
    create_topic(broker, name, 1, {"retention.ms": "-1"})
    for job, code in (("archive", 0), ("reconcile", 6)):
        done = headrace(
            broker, "run", job, "--topic", name, *warehouse, "--master", "local[2]", "--json"
        )
        assert done.returncode == code, done.stderr
    assert f"nothing is proven: {name} holds no records now" in done.stderr
    found = json.loads(done.stdout)
    assert (found["is_exact"], found["is_proven"], found["stored"]) == (True, False, 0)


def test_quality_and_replay_answer_with_figures(broker, numbered_topic, tmp_path):
    expected = tmp_path / "expect.toml"
    expected.write_text(
        f'["{numbered_topic}".checks]\n"no x" = "key <> cast(\'shop\' AS binary)"\n'
    )
    done = headrace(
        broker,
        "quality",
        numbered_topic,
        "--expect",
        str(expected),
        "--master",
        "local[2]",
        "--json",
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["violations"] == {"no x": 89}
    target = f"{numbered_topic}-again"
    create_topic(broker, target, 1, {"retention.ms": "-1"})
    done = headrace(
        broker, "replay", numbered_topic, "--to", target, "--dry-run", "--json",
        "--sql", "SELECT key, value FROM records WHERE partition = 1", "--master", "local[2]",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == 30


def test_a_replay_says_which_pauses_it_cuts_short(broker, topic):
    target = f"{topic}-again"
    create_topic(broker, target, 1, {"retention.ms": "-1"})
    producer, hour_ms = Producer({"bootstrap.servers": broker}), 3_600_000
    for n, hours in enumerate((0, 0, 3, 5)):
        at_ms = 1_700_000_000_000 + hours * hour_ms
        producer.produce(topic, b"%d" % n, b"k", 0, timestamp=at_ms)
    assert producer.flush(60) == 0
    given = ("replay", topic, "--to", target, "--speed", "1x", "--master", "local[1]")
    done = headrace(broker, *given, "--dry-run")
    said = "2 pauses between records {} cut short by --pause-max, by 3.0 h in all"
    assert (done.returncode, done.stderr.strip()) == (0, said.format("would be")), done.stderr
    done = headrace(broker, *given, "--pause-max", "2s")
    said = said.replace("3.0 h", "5.0 h")
    assert done.stderr.splitlines()[:2] == [said.format("will be"), said.format("were")]
    assert "\n4 records written" in done.stdout


def test_options_that_contradict_each_other_are_refused_before_spark_starts(broker, topic):
    replay = ("replay", topic, "--to", topic)
    for given, said in (
        (("--since", "2014-01-01", "--until", "2013-01-01"), "--since is after --until"),
        (("--pause-max", "1m"), "--pause-max has no effect without --speed"),
    ):
        done = headrace(broker, *replay, *given)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_an_error_of_sql_or_of_ours_is_said_in_two_lines(broker, topic):
    target = f"{topic}-again"
    create_topic(broker, target, 1, {"retention.ms": "-1"})
    replay = ("replay", topic, "--to", target, "--dry-run", "--master", "local[1]", "--sql")
    for sql, said in (
        ("SELECT nope FROM records", "UNRESOLVED_COLUMN"),
        ("SELECT 1 AS value, 2 AS headers FROM records", "DATATYPE_MISMATCH"),
    ):
        done = headrace(broker, *replay, sql)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert len(done.stderr.splitlines()) == 2, done.stderr
