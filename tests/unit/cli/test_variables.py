"""Environment variables of `serve`: every option has one, and what is misspelt is noticed."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace.cli.serve import serve
from headrace.cli.variables import misspelt

OPTIONS = [
    option
    for option in serve.params
    if isinstance(option, click.Option) and not option.hidden and option.name != "as_json"
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.opts[0])
def test_every_option_has_a_variable_that_the_help_shows(option: click.Option) -> None:
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output.replace("\n", "")
    name = option.opts[0].removeprefix("--").replace("-", "_").upper()
    assert option.envvar == f"HEADRACE_{name}"
    assert option.envvar in "".join(shown.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_PARTITIONS", "six"),
        ("HEADRACE_AUTO_CREATE_TOPICS", "perhaps"),
        ("HEADRACE_KAFKA", "9092"),
        ("HEADRACE_LOG_LEVEL", "loud"),
        ("HEADRACE_OFFLOAD_MIB_PER_S", "-1"),
        ("HEADRACE_OPEN_TO_NETWORK", "maybe"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable(name: str, value: str) -> None:
    done = CliRunner().invoke(cli, ["serve"], env={name: value})
    assert done.exit_code == 2
    assert name in done.output


def test_a_name_that_is_nearly_one_of_ours_is_reported() -> None:
    names = ["HEADRACE_KAKFA", "HEADRACE_KAFKA", "HEADRACE_SERVICE_HOST", "HOME"]
    names += ["HEADRACE_CACHE", "HEADRACE_CONTEXT", "HEADRACE_PASSWORD"]  # not of `serve`
    assert misspelt(serve, names) == {"HEADRACE_KAKFA": "HEADRACE_KAFKA"}
