"""Prometheus and its promtool: on the PATH, or as Debian ships them.

Invariants: without either the tests are skipped with the reason.
"""

from __future__ import annotations

import shutil

import pytest
from tests.debian import unpacked


def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if it cannot be had."""
    found = shutil.which(name)
    if found is None and (folder := unpacked("prometheus")) is not None:
        found = shutil.which(name, path=str(folder / "usr" / "bin"))
    if found is None:
        pytest.skip(f"{name} is not installed, and apt-get cannot download it here")
    return found
