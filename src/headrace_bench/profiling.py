"""A flame graph of Headrace's broker under a workload, with py-spy.

Invariants: py-spy samples a running process from outside, so the broker is unmodified. It is
downloaded by version and hash if it is not on the PATH. Figures measured while profiling are not
kept.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, TypeVar

from headrace_bench import parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSION = "0.4.1"
_SHA256 = "6a80ec05eb8a6883863a367c6a4d4f2d57de68466f7956b6367d4edd5c61bb29"  # Linux, x86-64
_RATE_HZ = 200
_DURATION_MAX_S = 600
_T = TypeVar("_T")


def _folder() -> Path:
    return parts.peers_folder() / "py-spy"


def missing() -> str:
    """What is missing, or ""."""
    return "" if parts.find_program("py-spy", _folder()) else "no py-spy"


def install() -> None:
    """Download the wheel, which contains the program."""
    parts.fetch_wheel(f"py-spy=={VERSION}", _SHA256, _folder())


def flame_graph(pid: int, target: Path, measured: Callable[[], _T]) -> _T:
    """Call `measured` while `pid` is sampled; the picture is then in `target` (SVG).

    Raises PartMissing if py-spy is missing or may not trace the process.
    """
    program = parts.find_program("py-spy", _folder())
    if program is None:
        raise parts.PartMissing("no py-spy: `headrace bench --install profiler`")
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [str(program), "record", "--pid", str(pid), "--output", str(target)]
    command += ["--rate", str(_RATE_HZ), "--duration", str(_DURATION_MAX_S), "--threads"]
    spy = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        return measured()
    finally:
        spy.send_signal(signal.SIGINT)
        output, _ = spy.communicate(timeout=120)
        if not target.exists():
            raise parts.PartMissing(
                f"py-spy drew nothing: {output.strip()[-300:]}; it must be allowed to trace"
                " (root, or kernel.yama.ptrace_scope=0)"
            )
