"""No mode says "held" of a run in which nothing was written, or nothing went wrong."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.blackbox import run as blackbox
from headrace_verify.simulation import explore
from headrace_verify.soak import run as soak
from headrace_verify.upgrade import run as upgrade
from headrace_verify.upgrade.findings import Findings
from headrace_verify.verdicts import HELD, INCONCLUSIVE, VIOLATED, NotRun, verdict_of
from headrace_verify.wire import run as wire
from headrace_verify.wire.run import CASES

FAULT = object()


def of_blackbox(folder, acknowledged=5, read=5, faults=1, wrong=()):
    outcome = blackbox.Outcome(blackbox.Plan(1, 1), folder, [FAULT])
    outcome.tally.operations = {"send": {"invoke": 9, "ok": acknowledged}}
    outcome.tally.records_read = read
    outcome.done.injected = [FAULT] * faults
    outcome.violations = [*wrong]
    return outcome


def of_wire(mode, writes=5, checked=1, wrong=()):
    result = wire.Result(CASES[0], 1.0, checked, 0, b"", [*wrong], [], {})
    return wire.Outcome(wire.Plan(1, 1, (), "", mode), [result], [], writes, 1.0, [])


def of_soak(acknowledged=5, rounds=5, figures=True, wrong=()):
    report = {"acknowledged": acknowledged, "faults": [], "lost": []}
    found = {"rss": 1} if figures else {}
    return soak.Outcome(soak.Plan(1, 1), None, [], None, report, rounds, found, [*wrong], [], [])


def of_simulation(operations=5, faults=True, unstable=()):
    hit = {"crash": 1} if faults else {}
    return explore.Outcome(1, operations=operations, faults=hit, unstable=[*unstable])


def of_upgrade(checked=5, wrong=(), skipped=()):
    found = Findings("0.1.0: killed")
    found.checked, found.wrong, found.skipped = checked, [*wrong], [*skipped]
    return upgrade.Outcome([found], 1.0)


@pytest.fixture
def outcome(request, tmp_path):
    mode, more = request.param
    match mode:
        case "blackbox":
            return of_blackbox(tmp_path, **more)
        case "wire" | "security":
            return of_wire(mode, **more)
        case "soak":
            return of_soak(**more)
        case "simulate":
            return of_simulation(**more)
    return of_upgrade(**more)


MODES = ("blackbox", "wire", "security", "soak", "simulate", "upgrade")


@pytest.mark.parametrize("outcome", [(mode, {}) for mode in MODES], indirect=True, ids=MODES)
def test_a_run_with_evidence_has_held(outcome):
    assert (verdict_of(outcome), outcome.gaps) == (HELD, [])


@pytest.mark.parametrize(
    ("outcome", "gap"),
    [
        (("blackbox", {"acknowledged": 0}), "no acknowledgements"),
        (("blackbox", {"read": 0}), "no records read"),
        (("blackbox", {"faults": 0}), "no faults that took effect"),
        (("wire", {"writes": 0}), "no writes of the well-behaved client"),
        (("wire", {"checked": 0}), f"no checks of the case {CASES[0].name!r}"),
        (("security", {"writes": 0}), "no writes of the well-behaved client"),
        (("soak", {"acknowledged": 0}), "no acknowledgements"),
        (("soak", {"rounds": 0}), "no probe rounds"),
        (("soak", {"figures": False}), "no figures of growth"),
        (("simulate", {"operations": 0}), "no completed operations"),
        (("simulate", {"faults": False}), "no faults that took effect"),
        (("upgrade", {"checked": 0}), "nothing was compared"),
        (("upgrade", {"checked": 0, "skipped": ["obstore is not installed"]}),
         "obstore is not installed"),
    ],
    indirect=["outcome"],
)  # fmt: skip
def test_a_run_without_evidence_is_inconclusive_and_names_it(outcome, gap):
    assert verdict_of(outcome) == INCONCLUSIVE
    assert gap in outcome.gaps


@pytest.mark.parametrize(
    "outcome",
    [
        ("blackbox", {"acknowledged": 0, "wrong": ["lost"]}),
        ("wire", {"writes": 0, "wrong": ["lost"]}),
        ("soak", {"acknowledged": 0, "wrong": ["lost"]}),
        ("simulate", {"operations": 0, "unstable": [7]}),
        ("upgrade", {"checked": 0, "wrong": ["lost"]}),
    ],
    indirect=True,
)
def test_a_violation_stays_one_however_little_was_checked(outcome):
    assert verdict_of(outcome) == VIOLATED


@pytest.mark.parametrize("error", [NotRun("not ready after 60 s"), OSError(28, "disk full")])
def test_a_run_that_could_not_be_made_is_inconclusive(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(wire, "run_wire", fail)
    done = CliRunner().invoke(cli, ["verify", "wire", "--time", "1s", "--json"])
    assert done.exit_code == 6
    assert json.loads(done.stdout)["verdict"] == INCONCLUSIVE
    assert "INCONCLUSIVE: the run could not be made" in done.stderr
