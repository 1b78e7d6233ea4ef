"""Processes with all that they started, such as a command with Spark's Java and Python: killed, or
run on a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from tests.waiting import wait_until


def kill_tree(process: subprocess.Popen) -> None:
    """Kill -9, at once. Whoever started the process still has to wait for it."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        started = root.children(recursive=True)
        for each in (*started, root):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(started, timeout=60)


class OnTerminal:
    """`headrace` as of a person at a terminal, in a session of its own as Ctrl-C reaches all of
    it."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        near, far = os.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
        self.drawn, self._near = b"", near
        self._child = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            stdout=far,
            stderr=far,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in no background
        )
        os.close(far)

    def read_until(self, found: bytes | None) -> None:
        """Read what is drawn until it has this pattern; None: to its end."""
        with suppress(OSError):  # EIO: the child has closed its side
            while found is None or not re.search(found, self.drawn):
                data = os.read(self._near, 65_536)
                if not data:
                    break
                self.drawn += data

    def end_by(self, number: int) -> None:
        """Send a signal: Ctrl-C to all of the session, another one to the command."""
        send = os.killpg if number == signal.SIGINT else os.kill
        send(self._child.pid, number)

    def end(self) -> int:
        """The exit code, once no process of the session is left."""
        self.read_until(None)
        os.close(self._near)
        code = self._child.wait(600)
        wait_until(lambda: not self._left())
        return code

    def _left(self) -> list[str]:
        states = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                states += [state] if int(session) == self._child.pid else []
        return [state for state in states if state not in "ZX"]
