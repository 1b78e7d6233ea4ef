"""Options from a file: their precedence, and unknown names."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from headrace.cli.cluster_options import CLUSTER_NAMES, cluster_options
from headrace.cli.config_file import config_option, read_file
from headrace.cli.failures import CommandFailed
from headrace.cli.serve import serve


@click.command()
@click.option("--kafka", default="default", envvar="HEADRACE_KAFKA")
@click.option("--partitions", type=click.IntRange(1), default=1)
@click.option("--auto/--no-auto", default=True)
@click.option("--secret", hidden=True)
@cluster_options
@config_option("serve", CLUSTER_NAMES)
def show(**options):
    click.echo(repr(options))


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("KAFKA", "CONFIG", "ZOOKEEPER", "QUORUM"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)

    def run(text, *arguments, **env):
        path = tmp_path / "headrace.toml"
        path.write_text(text)
        done = CliRunner().invoke(
            show, ["--config", str(path), *arguments], env=env, standalone_mode=False
        )
        if done.exception is not None:
            raise done.exception
        return eval(done.output)

    return run


def test_command_line_then_environment_then_file_then_default(run):
    text = '[serve]\nkafka = "file"\n'
    assert run("")["kafka"] == "default"
    assert run(text)["kafka"] == "file"
    assert run(text, HEADRACE_KAFKA="environment")["kafka"] == "environment"
    assert run(text, "--kafka", "flag", HEADRACE_KAFKA="environment")["kafka"] == "flag"


def test_values_of_every_kind_are_taken_and_checked_as_on_the_command_line(run):
    options = run(
        "[serve]\npartitions = 6\nauto = false\n[cluster]\nquorum = [4, 3, 2]\nbroker-id = 7\n"
        'zookeeper = "a:1,b:2"\nsession-timeout-ms = 900'
    )
    assert options["partitions"] == 6
    assert options["auto"] is False
    assert options["quorum"] == (4, 3, 2)
    assert (options["broker_id"], options["zookeeper"]) == (7, "a:1,b:2")
    assert options["session_timeout_ms"] == 900
    with pytest.raises(CommandFailed, match=r"partitions in .serve. is 0 .*not in the range"):
        run("[serve]\npartitions = 0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[serve]\npartition = 6",
            "unknown partition in .serve.; nothing was started: did you mean partitions",
        ),
        ("[cluster]\nkafka = '1:1'", r"unknown kafka in .cluster."),
        ("[serve]\nsecret = '1'", "unknown secret"),
        ("[serve]\nconfig = '1'", "unknown config"),
        ("[clusters]\nrack = 'a'", r"unknown .clusters.*did you mean cluster"),
        ("kafka = 'x'", r"kafka is outside a table: put .serve. on a line above"),
        ("rack = 'x'", r"rack is outside a table: put .cluster. on a line above"),
        ("serve = 1", r"serve must be a table: write .serve."),
        ("[serve]\nkafka = {a = 1}", r"kafka in .serve. is .*a table.*expected a quoted string"),
        ("[serve]\nkafka = 9092", r"kafka in .serve. is 9092 .a number.: expected a quoted"),
        ("[serve]\npartitions = '6'", r"partitions in .serve. is '6' .text.: expected an integer"),
        (
            "[serve]\npartitions = 1.5",
            r"partitions in .serve. is 1.5 .a number.: expected an integer",
        ),
        ("[serve]\npartitions = true", r"is true .true or false.: expected an integer"),
        ("[serve]\nauto = 'no'", r"auto in .serve. is 'no' .text.: expected true or false"),
        ("[cluster]\nquorum = ['a']", r"quorum in .cluster. is .*expected three numbers"),
        ("[cluster]\nquorum = [1, 2, 3]", r"quorum in .cluster. is .*no number may exceed"),
        ("[cluster]\nbroker-id = 1979-05-27", r"broker-id in .cluster. is .*a date"),
        ("[broker]\nkafka = 'h:1'", r"unknown .broker.*: known are cluster, serve$"),
        ("[serve", "cannot be read as TOML"),
    ],
)
def test_settings_without_effect_are_refused(run, text, message):
    with pytest.raises(CommandFailed, match=message):
        run(text)


def test_the_names_of_the_cluster_table_are_those_of_its_options():
    names = {option.removeprefix("--") for parameter in serve.params for option in parameter.opts}
    assert set(CLUSTER_NAMES) <= names


def test_the_file_may_be_named_by_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "headrace.toml"
    path.write_text('[cluster]\nrack = "r1"\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(path))
    done = CliRunner().invoke(show, [], standalone_mode=False)
    assert eval(done.output)["rack"] == "r1"


def test_settings_may_be_written_under_their_full_names(tmp_path):
    path = tmp_path / "headrace.toml"
    context = click.Context(serve)

    def found(text):
        path.write_text(text)
        return read_file(path, context, "serve", CLUSTER_NAMES)

    assert found("[serve]\nnum.partitions = 6\nlog.cleaner.backoff.ms = 500")["partitions"] == 6
    assert found('[serve]\n"num.partitions" = 6')["partitions"] == 6
    assert found("[serve]\nsocket-request-max-bytes = 70000") == {
        "socket_request_max_bytes": 70_000
    }
    assert found('[cluster]\nbroker.rack = "r"')["rack"] == "r"
    for text, message in (
        ("[serve]\nnum.partitions = 6\npartitions = 7", "set twice"),
        ("[serve]\nnum.partition = 6", "did you mean num.partitions"),
        ("[serve]\nnum.partitions = 0", "num.partitions in .serve. is 0 .*from 1 to 10000"),
        ('[serve]\nlog.retention.ms = "-2"', "log.retention.ms in .serve. is '-2'.*retention.ms"),
    ):
        with pytest.raises(CommandFailed, match=message):
            found(text)


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("DATA_DIR", "did you mean data-dir"),
        ("data_directory", "did you mean data-dir"),
        ("retention-ms", "log-retention-ms"),
        ("xyzzy", "docs/reference/settings.md lists all settings"),
    ],
)
def test_an_unknown_key_gets_suggestions_and_not_the_names_of_all_settings(
    tmp_path, key, step
) -> None:
    path = tmp_path / "headrace.toml"
    path.write_text(f"[serve]\n{key} = 1\n")
    with pytest.raises(CommandFailed) as refused:
        read_file(path, click.Context(serve), "serve", CLUSTER_NAMES)
    assert step in refused.value.message
    assert len(refused.value.message) < len(str(path)) + 200
