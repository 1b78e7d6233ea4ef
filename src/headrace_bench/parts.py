"""Other systems, downloaded into a cache folder: Debian packages, Go modules, Maven artifacts,
wheels.

Invariants: uses only the ordinary client of each registry, as configured on this machine, and names
no address. Nothing is installed system-wide: packages are unpacked into `<cache>/peers/<name>`,
which does not need root. Versions are pinned if the registry keeps old ones; Debian's are the
release's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Retriable
from headrace.java.jars import cache_folder
from headrace_bench.kafka_parts import fetch_with_ivy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FETCH_TIMEOUT_S = 900


class PartMissing(Retriable):
    """Something that a benchmark needs could not be downloaded, or is missing."""


def peers_folder() -> Path:
    """Where other systems are unpacked."""
    return cache_folder() / "peers"


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False,
            timeout=_FETCH_TIMEOUT_S, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PartMissing(f"`{' '.join(command[:3])}` could not be run: {error}") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-800:]
        raise PartMissing(f"`{' '.join(command[:4])}` failed: {output}")
    return done.stdout


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def fetch_debian(package: str, target: Path) -> None:
    """Unpack a package of this Debian release, and missing dependencies, in `target`.

    Raises PartMissing without apt, or if apt does not know the package.
    """
    if shutil.which("apt-get") is None:
        raise PartMissing(
            f"no apt-get here: install {package} with your system's package manager, on the PATH"
        )
    plan = _run(["apt-get", "-s", "--no-install-recommends", "install", package], Path.cwd())
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    if not names:
        return  # everything is installed
    _fresh(target)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        folder.chmod(0o755)
        _run(["apt-get", "download", *names], folder)
        for archive in sorted(folder.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(target)], folder)


def fetch_go(module: str, target: Path) -> None:
    """`go install module@version` into `target`. Raises PartMissing."""
    if shutil.which("go") is None:
        raise PartMissing("no Go compiler on the PATH: install one (package golang-go)")
    _run(["go", "install", module], _fresh(target), {"GOBIN": str(target), "GOFLAGS": "-mod=mod"})


def build_go(source: Path, target: Path) -> None:
    """Build the Go program in `source` (go.mod and go.sum beside it). Raises PartMissing."""
    if shutil.which("go") is None:
        raise PartMissing("no Go compiler on the PATH: install one (package golang-go)")
    _run(["go", "build", "-o", str(target), "."], source)


def fetch_maven(coordinates: Sequence[str], target: Path) -> None:
    """Jars of `organisation:module:version` and their dependencies, in `target`. Raises
    PartMissing."""
    _fresh(target)
    for one in coordinates:
        organisation, module, revision = one.split(":")
        try:
            fetch_with_ivy(cache_folder(), target, organisation, module, revision)
        except RuntimeError as error:
            raise PartMissing(str(error)) from error


def fetch_wheel(requirement: str, sha256: str, target: Path) -> None:
    """One wheel by version and hash, in `target`. Raises PartMissing."""
    _fresh(target)
    wanted = target / "requirement.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes"]
    _run([*command, "--target", str(target), "-r", str(wanted)], target)


def find_program(name: str, folder: Path) -> Path | None:
    """A program: from `folder`, else from the PATH, else None."""
    for place in ("usr/bin", "usr/sbin", "bin", "."):
        if (folder / place / name).is_file():
            return folder / place / name
    found = shutil.which(name)
    return Path(found) if found else None


def library_path(folder: Path) -> dict[str, str]:
    """The environment in which unpacked Debian programs find their libraries."""
    places = [str(place) for place in (folder / "usr" / "lib").glob("*-linux-gnu")]
    return {"LD_LIBRARY_PATH": ":".join(places)} if places else {}
