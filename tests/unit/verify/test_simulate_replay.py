"""`headrace verify simulate --replay`: a replay says no more than it has seen."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.failures import OK, UNKNOWN
from headrace_verify.commands.simulate import simulate
from headrace_verify.simulation.run import draw_scenario
from headrace_verify.simulation.schedule import Fault


@pytest.mark.parametrize(
    ("at_s", "code", "text"),
    [(10_000.0, UNKNOWN, "INCONCLUSIVE: no faults that took effect"), (0.5, OK, "clean")],
)
def test_a_replay_whose_faults_took_no_effect_is_inconclusive(tmp_path, at_s, code, text):
    fault = Fault(at_s, "pause", 0.2, 0, 0, 0.1)
    scenario = draw_scenario(1, 2.0, is_lone=True)._replace(schedule=(fault,), points=())
    path = tmp_path / "seed-1.json"
    needed = {"faults_needed": [fault._asdict()], "points_needed": []}
    path.write_text(json.dumps({"scenario": scenario._asdict(), **needed}))
    done = CliRunner().invoke(simulate, ["--replay", str(path)])
    assert (done.exit_code, text in done.output) == (code, True), done.output
