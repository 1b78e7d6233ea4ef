"""Runs a broker as a child process: started on free ports, stopped by its process id."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import Retriable

if TYPE_CHECKING:
    from pathlib import Path

_READY_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20


class BrokerFailed(Retriable):
    """The broker did not start."""


class BrokerProcess:
    """`headrace serve`, for as long as the `with` block lasts."""

    def __init__(self, data_dir: Path, log_file: Path, kafka: str = "127.0.0.1:0") -> None:
        self._command = [
            sys.executable, "-m", "headrace.cli.main", "serve", "--data-dir", str(data_dir),
            "--kafka", kafka, "--http", "127.0.0.1:0", "--json", "--log-level", "warning",
        ]  # fmt: skip
        self._log_file = log_file
        self._process: subprocess.Popen[str] | None = None
        self.kafka = ""
        self.http = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it is ready. Raises BrokerFailed."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                self._command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        ready: dict[str, Any] = {}
        reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        reader.start()
        reader.join(_READY_TIMEOUT_S)
        if not ready:
            self.stop()
            last = self._log_file.read_text().strip().splitlines()[-3:]
            raise BrokerFailed(f"The broker did not become ready: {' | '.join(last)}")
        self.kafka, self.http = ready["kafka"], ready["http"]

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not exit in time."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, ready: dict[str, Any]) -> None:
        assert self._process is not None, "started"
        assert self._process.stdout is not None, "piped"
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said.get("ready"):
                ready.update(said)
                return
