"""`ledger_writer` as a test sees it: start it, read what it says, kill it, suspend it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class WriterProcess:
    """One writer; a thread reads what it says."""

    def __init__(
        self,
        zookeeper: str,
        quorum: tuple[int, int, int],
        size: int = 2_000,
        outstanding: int = 8,
        timeout_ms: int = 10_000,
    ) -> None:
        numbers = [*quorum, size, outstanding, timeout_ms]
        arguments = [zookeeper, *map(str, numbers)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.ledger_writer", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.acked = 0
        self.acked_at: list[int] = []
        """When each acknowledgement was told, in ns."""
        self.failure = ""
        assert self.process.stdout is not None
        word, number = self.process.stdout.readline().split()
        assert word == "ledger"
        self.ledger = int(number)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words and words[0] == "acked" and line.endswith("\n"):
                self.acked_at.append(int(words[2]))
                self.acked = int(words[1])
            elif words and words[0] == "failed":
                self.failure = words[1]

    def wait(self, condition, timeout_s: float = 90.0) -> None:
        """Wait until `condition(self)`."""
        end = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < end, f"acked {self.acked}, failure {self.failure!r}"
            time.sleep(0.002)

    def wait_acked(self, end: int) -> None:
        """Wait until this many bytes are acknowledged."""
        self.wait(lambda self: self.acked >= end)

    def wait_more(self, count: int) -> None:
        """Wait for so many more acknowledgements: of now, not those that were not read yet."""
        since = time.monotonic_ns()
        self.wait(lambda self: len(self.acked_at) - bisect(self.acked_at, since) >= count)

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def longest_gap_ms(self, since: int = 0) -> float:
        """The longest time between two acknowledgements, in ms."""
        times = [at for at in self.acked_at if at >= since]
        return max((b - a for a, b in pairwise(times)), default=0) / 1e6

    def end(self) -> None:
        """kill -9, and read what it had said."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
