"""The quick profile of `headrace verify fuzz`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import importlib.util
import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.fuzz.run import Found, Plan, run_fuzz
from headrace_verify.fuzz.seeds import seeds
from headrace_verify.fuzz.targets import TARGETS, target_of

LACKS_ATHERIS = importlib.util.find_spec("atheris") is None
needs_atheris = pytest.mark.skipif(LACKS_ATHERIS, reason="atheris is for Linux on x86_64 alone")
EDGES = 1_000
"""Many fewer than a run reaches: what is not instrumented has none."""


def test_requests_recorded_from_real_clients_are_parsed_by_every_target():
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


def test_a_planted_bug_is_found_only_by_an_input_that_was_met_by_an_exception():
    fault = "ModuleNotFoundError: no module"
    assert not Found(0, 0, fault).is_exception_of(["logins"]), "the process ended without an input"
    for kind, is_found in (("crash", True), ("oom", False), ("timeout", False)):
        found = Found(1, 1, fault, "logins", b"x", kind)
        assert found.is_exception_of(["logins"]) == is_found
    assert not Found(1, 1, fault, "http", b"x", "crash").is_exception_of(["logins"])


@needs_atheris
@pytest.mark.timeout(600)
def test_an_input_of_a_corpus_is_of_the_same_target_whatever_targets_are_chosen(tmp_path):
    assert not run_fuzz(Plan(500, 7, ["expressions"], tmp_path)).is_violated
    begun = [path.read_bytes() for path in tmp_path.glob("seed-*")]
    assert {target_of(data) for data in begun} == {"expressions"}
