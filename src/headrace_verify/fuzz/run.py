"""Runs fuzz targets in a process of their own, and says what they reached and found.

Invariants: the same seed and number of inputs give the same run. A corpus folder, if one is given,
grows; without it, nothing is kept but inputs that found a fault. An input means the same whatever
targets are chosen: its first byte is its target's place among all of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.fuzz.seeds import seeds
from headrace_verify.fuzz.targets import TARGETS, target_of
from headrace_verify.verdicts import NotRun, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY_MB_MAX = 1_024
"""Of a target's process, Python and its libraries included."""
INPUT_S_MAX = 60
"""For one input, on a busy machine."""
LENGTH_MAX = 4_096
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")
_EDGES = re.compile(r"cov: (\d+)")


class Plan(NamedTuple):
    """What is run."""

    runs: int
    """Inputs of all targets together."""
    seed: int
    targets: Sequence[str]
    corpus: Path | None = None


class Found(NamedTuple):
    """What came of it."""

    inputs: int
    edges: int
    """Of the instrumented code, that were reached."""
    fault: str
    """The exception with its traceback, or what libFuzzer says; "" if there was none."""
    target: str = ""
    """Where the fault is."""
    input: bytes = b""
    kind: str = ""
    """What libFuzzer calls an input that ended the process: crash, oom, timeout ...; "" if none."""

    def is_exception_of(self, targets: Sequence[str]) -> bool:
        """Whether an input of one of these targets was met by an exception: not a process that
        ended otherwise, for example before its first input."""
        return self.kind == "crash" and self.target in targets

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.fault)

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        return missing({"inputs": self.inputs, "edges": self.edges})


def target_names(only: Sequence[str] = ()) -> list[str]:
    """Those whose name contains one of the words."""
    return [name for name in TARGETS if not only or any(word in name for word in only)]


def run_fuzz(plan: Plan, bug: str = "") -> Found:
    """Run the targets of a plan in a process, with a planted bug. Raises NotRun."""
    if importlib.util.find_spec("atheris") is None:
        raise NotRun("atheris is not installed, which has wheels for Linux on x86_64 alone")
    names = plan.targets
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        corpus = plan.corpus or folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        begun = seeds()
        for name in names:
            first = bytes([[*TARGETS].index(name)])
            for number, data in enumerate(begun.get(name, [])):
                path = corpus / f"seed-{name}-{number:04}"
                path.write_bytes(first + data[:LENGTH_MAX])
        said, code = _run(plan, names, corpus, folder, bug)
        faults = sorted(one for one in folder.iterdir() if one.is_file())
        data = faults[0].read_bytes() if faults else b""
    executed, edges = _EXECUTED.findall(said), _EDGES.findall(said)
    fault = said[-4_000:] if code or data else ""
    target = target_of(data) if data else ""
    kind = faults[0].name.partition("-")[0] if faults else ""
    inputs, reached = int((executed or [0])[-1]), int((edges or [0])[-1])
    return Found(inputs, reached, fault, target, data[1:], kind)


def _run(plan: Plan, names: Sequence[str], corpus: Path, folder: Path, bug: str) -> tuple[str, int]:
    """(what libFuzzer says, its exit code)."""
    command = [sys.executable, "-m", "headrace_verify.fuzz.process", ",".join(names), bug]
    command += [str(corpus), f"-runs={plan.runs}", f"-seed={plan.seed}", f"-max_len={LENGTH_MAX}"]
    command += [f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    command += [f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={INPUT_S_MAX}"]
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        env=os.environ | {"HEADRACE_COMPILED": "0", "PYTHONHASHSEED": "0"},
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    return done.stderr + done.stdout, done.returncode
