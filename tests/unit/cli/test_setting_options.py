"""Options of `headrace serve` that can be repeated."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli.cluster_options import cluster_settings
from headrace.cli.failures import CommandFailed
from headrace.cli.setting_options import setting_options

REPEATED = ("kafka", "http", "advertise")


def run(*arguments: str, environment: dict[str, str | None] | None = None) -> tuple[Result, Any]:
    found: dict[str, Any] = {}

    @click.command()
    @setting_options(REPEATED)
    def command(**values: Any) -> None:
        found.update(values)

    return CliRunner().invoke(command, arguments, env=environment), found


def test_a_repeated_option_yields_one_value_with_all_its_parts():
    result, found = run("--http", "127.0.0.1:1", "--http", "127.0.0.1:2")
    assert result.exit_code == 0, result.output
    assert found["http"] == (("127.0.0.1", 1), ("127.0.0.1", 2))
    assert found["kafka"], "its default"
    assert found["advertise"] is None, "it has no default"


@pytest.mark.parametrize("option", REPEATED)
@pytest.mark.parametrize("more", [(), ("127.0.0.1:1",)])
def test_an_empty_value_as_of_an_unset_variable_is_refused_with_the_form(option, more):
    values = ("", *more)
    result, _ = run(*(part for value in values for part in (f"--{option}", value)))
    assert result.exit_code == 2, result.output
    assert "on the command line: expected HOST:PORT" in result.output


@pytest.mark.parametrize("option", REPEATED)
def test_an_empty_variable_is_none(option):
    result, found = run(environment={f"HEADRACE_{option.upper()}": ""})
    assert result.exit_code == 0, result.output
    assert found == run()[1]


def test_no_zookeeper_is_not_an_empty_one():
    assert cluster_settings(None, "/headrace", 6_000, (3, 3, 2), None) is None
    with pytest.raises(CommandFailed, match="--zookeeper has no value"):
        cluster_settings("", "/headrace", 6_000, (3, 3, 2), None)
