"""Client programs in Go and JavaScript: built once into the cache, from pinned versions.

Invariants: a toolchain that is not installed skips the test with a reason; anything else that
keeps a program from being built fails it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.java.jars import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 900


@contextmanager
def built_once(kind: str, toolchain: list[str], sources: list[Path]) -> Iterator[Path]:
    """The folder in the cache for these sources; one process builds at a time."""
    digest = hashlib.sha256(subprocess.check_output(toolchain))
    for path in sources:
        digest.update(path.read_bytes())
    root = cache_folder() / "test-clients"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root / f"{kind}-{digest.hexdigest()[:16]}"


def run(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


def go_program() -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the copying program in Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    source = HERE / "go_clients"
    names = ("main.go", "franz.go", "sarama.go", "go.mod", "go.sum")
    with built_once("go", [go, "version"], [source / name for name in names]) as program:
        if not program.exists():
            partial = program.with_suffix(".partial")
            run(
                [go, "build", "-buildvcs=false", "-trimpath", "-o", str(partial), "."],
                source, GOFLAGS="-mod=readonly", GOWORK="off",
            )  # fmt: skip
            partial.replace(program)
    return [str(program)], {}


def node_program() -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the copying program in JavaScript."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node.js with npm on the PATH (packages nodejs, npm)")
    source = HERE / "node_clients"
    pinned = [source / "package.json", source / "package-lock.json"]
    with built_once("node", [node, "--version"], pinned) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for path in pinned:
                shutil.copy(path, partial)
            run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], partial)
            partial.replace(folder)
    return [node, str(source / "copy.mjs")], {"NODE_CLIENTS": str(folder)}
