"""The archive of a topic to Iceberg, which runs through all faults, and is killed and restarted.

Invariants: runs the installed command in separate processes. It may exit while brokers are down: it
is restarted. At the end, the table must equal the topic.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace_verify.history import NOTE, OK, History
from headrace_verify.real_broker import RealBroker, die_with_us
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "alpha"
LIVES_S = 25.0, 60.0
# Small rounds with maintenance between them: many commits that a kill may hit.
CONTINUOUS = ["--continuous", "--round-wait", "1", "--maintain-every", "5"]
"""Between two kills: Spark alone needs ten seconds or more to start."""
FINISH_TIMEOUT_S = 400
FINISH_TRIES = 3


def why_not() -> str | None:
    """Why no archive can run here; None if it can."""
    return None if find_spec("pyspark") else "pyspark is not installed"


@dataclass(slots=True)
class Archived:
    """The result."""

    kills: int = 0
    ended_by_itself: int = 0
    stored: int = 0
    archived: int = 0
    problems: list[str] = field(default_factory=list)


class Archive:
    """A crew member of a special kind."""

    def __init__(self, bootstrap: str, folder: Path, seed: int, history: History) -> None:
        self._base = [*RealBroker.command(), "--bootstrap", bootstrap, "pipeline", "run"]
        self._where = ["--topic", TOPIC, "--warehouse", str(folder / "warehouse")]
        self._where += ["--master", "local[1]"]
        self._log_path = folder / "archive.log"
        self._rng = seeded(f"archive {seed}")
        self._history = history
        self._over = threading.Event()
        self._released = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._has_stopped = threading.Event()
        self.result = Archived()

    def start(self) -> None:
        """Run it, killing and restarting it, until `finish`."""
        self._thread.start()

    def finish(self) -> Archived:
        """Kill it once more, let a last one finish, and compare."""
        self._over.set()
        self._has_stopped.wait(30)
        result, output = self.result, ""
        for _ in range(FINISH_TRIES):
            code, output = self._ask(["archive", *self._where, "--quiet"])
            if code == 0:
                break
        else:
            result.problems.append(f"the archive does not finish: {output[-300:]}")
            return result
        _, output = self._ask(["reconcile", *self._where, "--json"])
        try:
            report = json.loads(output)
        except ValueError:
            result.problems.append(f"the archive cannot be compared: {output[-300:]}")
            return result
        result.stored, result.archived = report["stored"], report["archived"]
        result.problems += [f"archive: {problem}" for problem in report["problems"]]
        if not result.stored:
            result.problems.append("archive: nothing was checked, the topic is empty")
        return result

    def close(self) -> None:
        """Kill the remaining process."""
        self._over.set()
        if self._thread.is_alive():
            self._has_stopped.wait(30)
        self._released.set()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._live()
        finally:
            self._has_stopped.set()
        self._released.wait()  # a process dies with the thread that started it

    def _live(self) -> None:
        """Run one life, which ends with kill -9 unless it exits on its own."""
        process = self._start(["archive", *self._where, "--quiet", *CONTINUOUS])
        shortest, longest = LIVES_S
        life_s = shortest + (longest - shortest) * self._rng.random()
        is_whole_group = self._rng.random() < 0.5
        for _ in range(int(life_s / 0.2)):
            if self._over.wait(0.2) or process.poll() is not None:
                break
        if process.poll() is None:
            self.result.kills += 1
            self._history.write(OK, NOTE, what="archive killed", with_its_java=is_whole_group)
            if is_whole_group:
                _kill_group(process)
            process.kill()
        else:
            self.result.ended_by_itself += 1
            self._history.write(OK, NOTE, what="archive ended", code=process.returncode)
            self._over.wait(1.0)
        process.wait()
        if self._over.is_set():
            _kill_group(process)

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own command
                [*self._base, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
            )

    def _ask(self, arguments: list[str]) -> tuple[int, str]:
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                [*self._base, *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=FINISH_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return -1, "it took too long"
        return done.returncode, done.stdout or done.stderr


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of its processes have exited
