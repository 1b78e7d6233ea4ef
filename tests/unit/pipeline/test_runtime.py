"""Quiet settings of a Spark session."""

from headrace.java.jars import CACHE_VARIABLE
from headrace.pipeline.session import SessionConfig, settings_of, with_retries
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
