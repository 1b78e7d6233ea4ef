"""The quick profile of `headrace verify fuzz`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import importlib.util
import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.fuzz.seeds import seeds
from headrace_verify.fuzz.targets import TARGETS

LACKS_ATHERIS = importlib.util.find_spec("atheris") is None
needs_atheris = pytest.mark.skipif(LACKS_ATHERIS, reason="atheris is for Linux on x86_64 alone")
EDGES = 1_000
"""Many fewer than a run reaches: what is not instrumented has none."""


def test_what_real_clients_have_sent_is_parsed_by_every_target():
    found = seeds()
    assert found.keys() == TARGETS.keys()
    for name, given in found.items():
        for data in given:
            TARGETS[name](data)


@needs_atheris
@pytest.mark.timeout(600)
def test_no_mutation_of_it_is_met_by_an_unexpected_exception():
    result = CliRunner().invoke(cli, ["verify", "fuzz", "--quick", "--seed", "7", "--json"])
    report = json.loads(result.stdout)
    assert report["violations"] == []
    assert report["inputs"] > 10_000
    assert report["edges"] > EDGES
    assert report["targets"] == [*TARGETS]


@needs_atheris
@pytest.mark.timeout(600)
def test_a_planted_bug_is_found():
    result = CliRunner().invoke(cli, ["verify", "fuzz", "--planted", "base64"])
    assert result.exit_code == 0, result.output
