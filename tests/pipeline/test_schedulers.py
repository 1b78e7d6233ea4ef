"""The examples for Airflow, Dagster and dbt run as they stand, each in its own environment."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.documents.commands import ROOT, blocks

from headrace.pipeline.demo.clients import create_topic
from headrace_verify.blackbox.languages.rocketmq import NotInstalled, find_python

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]
LOCKS = Path(__file__).parent / "schedulers"
FILES = {
    kind.split()[1]: text
    for kind, text in blocks(ROOT / "docs" / "SCHEDULERS.md")
    if len(kind.split()) == 2
}
FIRST, SECOND = 10, 5
EXPECTED = """[orders]
columns = "amount DOUBLE"
required = ["body.amount"]
[orders.ranges]
"body.amount" = [0, 1000]
"""


def day_ms(day):
    return int(datetime(2013, day // 100, day % 100, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(scope="session")
def folder(broker, tmp_path_factory):
    """With expectations, which records of the first day meet, and one of the second does not."""
    create_topic(broker, "orders", 3, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker})
    for number in range(FIRST + SECOND):
        amount = -1 if number == FIRST else number
        day = day_ms(131 if number < FIRST else 201)
        producer.produce("orders", json.dumps({"amount": amount}), timestamp=day + number)
    assert producer.flush(60) == 0
    made = tmp_path_factory.mktemp("schedulers")
    (made / "orders.toml").write_text(EXPECTED)
    for name, text in FILES.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace("/var/lib/lake", f"{made}/lake")
        path.write_text(text.replace("/etc/orders.toml", f"{made}/orders.toml"))
    return made


@pytest.fixture
def run(broker, folder, request):
    """Run a program of a tool's environment, in its folder, with `headrace` on the PATH."""

    def output(tool, *words, code=0, **variables):
        try:
            python = find_python((LOCKS / f"{tool}.lock").read_text())
        except NotInstalled as error:
            pytest.skip(str(error))
        path = f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        # As a module: scripts name the folder in which their environment was made.
        command = [python, "-m", *words] if words[0] != "headrace" else words
        done = subprocess.run(
            command, cwd=folder / tool, capture_output=True, text=True, timeout=1_200, check=False,
            env={**os.environ, **variables, "PATH": path, "HEADRACE_BOOTSTRAP": broker,
                 "DO_NOT_TRACK": "1"},
        )  # fmt: skip
        assert (done.returncode == 0) == (code == 0), (done.stdout + done.stderr)[-6_000:]
        return done.stdout + done.stderr

    return output


def test_the_versions_to_install_are_those_that_are_tested():
    page = (ROOT / "docs" / "SCHEDULERS.md").read_text()
    for tool, package in (("airflow", "apache-airflow"), ("dagster", "dagster")):
        (version,) = re.findall(
            rf"^{package}==(\S+)", (LOCKS / f"{tool}.lock").read_text(), re.MULTILINE
        )
        assert f"pip install '{package}=={version}'" in page
        assert tool != "airflow" or f"/constraints-{version}/constraints-" in page


def test_airflow_fails_the_day_that_violates_an_expectation_without_a_retry(run, folder):
    home = folder / "airflow" / "home"
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    run("airflow", "airflow", "db", "migrate", **variables)
    # Named by the end of its interval, as a run that is started by hand is.
    said = run("airflow", "airflow", "dags", "test", "orders", "2013-02-01", **variables)
    assert f"{FIRST} records checked" in said
    failed = run("airflow", "airflow", "dags", "test", "orders", "2013-02-02", code=1, **variables)
    assert "AirflowFailException: headrace pipeline quality ended with 1" in failed
    assert "state=failed" in failed


def test_dagster_fails_the_day_that_violates_an_expectation(run, folder):
    variables = {"DAGSTER_HOME": str(folder / "dagster")}
    given = ("dagster", "dagster", "asset", "materialize", "-f", "orders.py", "--select")
    run(*given, "orders_table", **variables)
    said = run(*given, "orders_quality", "--partition", "2013-01-31", **variables)
    assert f"{FIRST} records checked" in said
    failed = run(*given, "orders_quality", "--partition", "2013-02-01", code=1, **variables)
    assert "headrace pipeline quality ended with 1" in failed


def test_dbt_replaces_the_days_of_its_interval(run, folder):
    words = ["headrace", "pipeline", "run", "archive", "--topic", "orders"]
    run("dbt", *words, "--warehouse", f"{folder}/lake")
    interval = json.dumps({"since": "2013-01-31", "until": "2013-02-02"})
    for _ in range(2):
        run("dbt", "dbt.cli.main", "build", "--profiles-dir", ".", "--vars", interval)
    shown = "import duckdb; print(duckdb.connect('orders.duckdb').sql('FROM days').fetchall())"
    (folder / "dbt" / "shown.py").write_text(shown)
    amounts = [sum(range(FIRST)), sum(range(FIRST + 1, FIRST + SECOND)) - 1]
    said = run("dbt", "shown")
    assert f"(datetime.date(2013, 1, 31), {FIRST}, {amounts[0]}.0)" in said
    assert f"(datetime.date(2013, 2, 1), {SECOND}, {amounts[1]}.0)" in said
