"""Prometheus and its promtool, as Debian ships them: on the PATH, or unpacked into the cache.

Invariants: nothing is installed; without apt-get and the network the tests are skipped with the
reason (decision 13).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path.home() / ".cache" / "headrace" / "prometheus"
TIMEOUT_S = 180


def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if it cannot be had."""
    found = shutil.which(name) or shutil.which(name, path=str(FOLDER / "usr" / "bin"))
    if found is None:
        _unpack()
        found = shutil.which(name, path=str(FOLDER / "usr" / "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed, and apt-get cannot download it here")
    return found


def _unpack() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    fetch = ["apt-get", "download", "-qq", "prometheus"]
    done = subprocess.run(fetch, cwd=FOLDER, capture_output=True, timeout=TIMEOUT_S, check=False)
    for package in FOLDER.glob("prometheus_*.deb") if done.returncode == 0 else ():
        subprocess.run(["dpkg", "-x", str(package), str(FOLDER)], check=True, timeout=TIMEOUT_S)
        package.unlink()
