"""Packages as Debian ships them, unpacked into the cache.

Invariants: nothing is installed; without apt-get and the network there is none (decision 13).
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

FOLDER = Path.home() / ".cache" / "headrace" / "debian"
TIMEOUT_S = 180


def unpacked(package: str) -> Path | None:
    """Where its files are; None if it cannot be had. One process downloads, others wait for it."""
    folder = FOLDER / package
    if folder.exists():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        fetch = ["apt-get", "download", "-qq", package]
        done = subprocess.run(
            fetch, cwd=partial, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        found = next(partial.glob("*.deb"), None)
        if done.returncode or found is None:
            return None
        subprocess.run(["dpkg", "-x", str(found), str(partial)], check=True, timeout=TIMEOUT_S)
        found.unlink()
        partial.replace(folder)
    return folder
