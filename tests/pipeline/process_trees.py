"""Kills processes with all that they started, such as a command with Spark's Java and Python."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import subprocess


def kill_tree(process: subprocess.Popen) -> None:
    """Kill -9, at once. Whoever started the process still has to wait for it."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        started = root.children(recursive=True)
        for each in (*started, root):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(started, timeout=60)
