"""Quiet settings of a Spark session."""

import json
import subprocess
import sys

import pytest

from headrace.java.jars import CACHE_VARIABLE
from headrace.pipeline.session import SessionConfig, settings_of, with_retries, worker_python
from headrace.pipeline.warehouse import Warehouse


def test_settings_stay_on_this_machine_and_say_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    settings = settings_of(SessionConfig(warehouse=Warehouse(tmp_path / "w")), [])
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.showConsoleProgress"] == "false"
    assert settings["spark.sql.catalog.headrace.jdbc.schema-version"] == "V1"
    assert settings_of(SessionConfig(settings={"spark.ui.enabled": "true"}), [])[
        "spark.ui.enabled"
    ] == ("true")


def test_local_masters_try_a_task_again():
    assert with_retries("local[*]") == "local[*,4]"
    assert with_retries("local[2]") == "local[2,4]"
    assert with_retries("local[2,1]") == "local[2,1]"
    assert with_retries("spark://h:7077") == "spark://h:7077"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/jars/a.jar", 1),
        ("/with space:/spark/python/lib/pyspark.zip:/and*star:/$HOME", 3),
        ("/spark/python/lib/pyspark.zip", 0),
        ("", 0),
    ],
)
def test_python_processes_of_spark_take_pyspark_from_the_environment(
    tmp_path, monkeypatch, given, left
):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "with space"))
    program = "import json, sys; print(json.dumps([sys.path, sys.executable, sys.argv[1:]]))"
    command = [worker_python(), "-c", program, "an argument", "*"]
    answer = subprocess.run(command, env={"PYTHONPATH": given}, capture_output=True, check=True)
    path, executable, arguments = json.loads(answer.stdout)
    mine = [entry for entry in given.split(":") if entry and "/python/lib/py" not in entry]
    assert (path[1 : left + 1], len(mine)) == (mine, left)
    assert not any(entry.endswith("pyspark.zip") for entry in path)
    assert (executable, arguments) == (sys.executable, ["an argument", "*"])


def test_python_processes_are_this_interpreter_where_no_file_can_be_run(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    assert worker_python() == sys.executable
