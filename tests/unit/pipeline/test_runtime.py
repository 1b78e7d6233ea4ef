"""A Java, pinned jars, quiet settings."""

import subprocess
from pathlib import Path

import pytest

from headrace.pipeline import jars
from headrace.pipeline.errors import JavaMissing
from headrace.pipeline.java import find_java_home, probe, wrap
from headrace.pipeline.session import SessionConfig, Warehouse, settings_of, with_retries


def test_the_wrapper_drops_the_one_module_and_keeps_every_other_argument(tmp_path):
    real = tmp_path / "java"
    real.write_text('#!/bin/sh\nfor each do echo "[$each]"; done\n')
    real.chmod(0o755)
    home = wrap(real, tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[-cp]", "[a b]", "[]", "[Main]"]


def test_a_java_that_is_none_is_not_taken(tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "java"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'java.home = /x' >&2\n"
                    "echo 'java.specification.version = 25' >&2\n")  # fmt: skip
    fake.chmod(0o755)
    assert probe(fake) == (Path("/x"), 25)
    assert probe(tmp_path / "no-java") is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("headrace.pipeline.java._home_from_wheel", lambda cache: None)
    with pytest.raises(JavaMissing, match="is Java 25"):
        find_java_home(tmp_path)


def test_a_cached_jar_with_the_right_hash_is_not_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
    place = tmp_path / "jars" / "m-1.jar"
    place.parent.mkdir()
    place.write_bytes(b"jar")
    pinned = jars.Jar("o", "m", "1", jars.sha256_of(place))
    assert jars.ensure_jars(Path("/no/java"), (pinned,)) == [place]


def test_settings_stay_on_this_machine_and_say_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path))
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
