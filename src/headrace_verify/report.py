"""What the reports of all modes have in common: a head, files, and a chart.

Invariants: knows no mode. A chart needs matplotlib; without it, the report says so.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace_verify.verdicts import Judged


def head(mode: str, judged: Judged) -> dict[str, Any]:
    """What the reports of all modes begin with: mode, version, time, machine and verdict."""
    return {
        "what": f"headrace verify {mode}",
        "version": version("headrace"),
        "at": datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(
            timespec="seconds"
        ),
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "verdict": verdict_of(judged),
    }


def write_json(folder: Path, name: str, value: Any) -> str:
    """Write a file into a report's folder; returns its name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value, indent=2, default=str) + "\n")
    return name


def add_chart(
    folder: Path, name: str, report: dict[str, Any], draw: Callable[[Any], Any]
) -> list[str]:
    """Write the figure that `draw(pyplot)` returns; returns the names of files.

    Without matplotlib, the report says so.
    """
    pyplot = _load_pyplot()
    if pyplot is None:
        report["chart"] = "skipped: matplotlib is not installed"
        return []
    figure = draw(pyplot)
    figure.tight_layout()
    figure.savefig(folder / name, dpi=110)
    pyplot.close(figure)
    return [name]


def _load_pyplot() -> Any:
    """Matplotlib's pyplot with a file backend; None if it is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return None
