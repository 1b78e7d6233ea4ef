"""A writer that does not end is reported with what it waits for, not waited for without bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from headrace_verify.crash import kill_cycles

if TYPE_CHECKING:
    import pytest


def test_a_child_that_ends_is_no_finding() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        assert kill_cycles._await_end(child.pid) is None


def test_a_child_that_hangs_is_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_cycles, "END_TIMEOUT_S", 0.1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        told = kill_cycles._await_end(child.pid)
        assert told is not None
        assert "python" in told
        assert child.wait(30) == -signal.SIGKILL
