"""The network of a run's own: any pair of nodes is cut, in either direction, and healed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_verify.blackbox import fabric


def test_any_pair_of_nodes_is_cut_healed_slowed_and_reset():
    why = fabric.why_not()
    if why is not None:
        pytest.skip(f"NO NETWORK NAMESPACES: {why}")
    before = Path("/run/netns").exists()
    script = Path(__file__).with_name("cut_and_heal.py")
    inside = (
        "import sys; from headrace_verify.blackbox.fabric import run_inside;"
        "sys.exit(run_inside(*sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", inside, str(script)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "broken\n"
    assert Path("/run/netns").exists() is before, "nothing is left of it"
