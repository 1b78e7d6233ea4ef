"""Makes and checks what is published: `make release`.

The result is in `dist/`: three source distributions, their wheels, a wheel with the compiled core
for each Python named (`--python`, by default this one), a bill of materials and checksums. Every
file is built twice and must have the same bytes. The broker's wheel for each Python, and its source
distribution, are then installed into empty environments, serve and deliver records there, and are
removed again. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (ROOT, ROOT / "packages" / "verify", ROOT / "packages" / "bench")
LOG = ROOT / ".cache" / "release" / "failed.log"
"""All that the command said which failed last."""
PACKAGES_MAX, SIZE_MAX_MB, FIRST_MESSAGE_MAX_S = 25, 125, 60
"""What a user's `pip install headrace` may bring, and how long until the first message."""
BUILT_WITH = {"HATCH_BUILD_HOOKS_ENABLE": "1", "SOURCE_DATE_EPOCH": "1580601600"}


class ReleaseError(Exception):
    """The release is not fit to be published; the message says why."""


def say(text: str) -> None:
    """A step that begins."""
    print(f"release: {text}", flush=True)


def run(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """The standard output of a command. Raises ReleaseError with the end of what it has said."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(  # noqa: S603
        [*map(str, command)],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = (done.stdout + done.stderr).strip()
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.write_text(f"{told}\n")
        end = "\n".join(told.splitlines()[-15:])
        raise ReleaseError(f"{' '.join(map(str, command))[:200]} has failed (all: {LOG}):\n{end}")
    return done.stdout


def environment(folder: Path, python: str) -> Path:
    """A virtual environment with the locked tools; the path of its Python."""
    made = folder / "bin" / "python"
    lock, ready = ROOT / "requirements-release.lock", folder / ".ready"
    if not ready.exists() or ready.read_text() != lock.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(*pip, "--require-hashes", "-r", lock)
        ready.write_text(lock.read_text())
    return made


def build_plain(tools: Path, into: Path) -> None:
    """The source distributions, and the wheels without compiled code, built from those."""
    for project in PROJECTS:
        run(tools, "-m", "build", "--no-isolation", "--outdir", into, project)


def build_compiled(tools: Path, into: Path) -> None:
    """The broker's wheel with the compiled core, named after the oldest C library it runs with."""
    with tempfile.TemporaryDirectory() as text:
        made = Path(text)
        run(tools, "-m", "hatchling", "build", "-t", "wheel", "-d", made, **BUILT_WITH)
        (wheel,) = made.iterdir()
        if sys.platform != "linux":
            shutil.move(wheel, into)
            return
        path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
        repair = [tools, "-m", "auditwheel", "repair", "--wheel-dir", into, wheel]
        run(*repair, PATH=path, **BUILT_WITH)


def check_identifiers(tools: Path, pythons: Iterable[str]) -> None:
    """Raises ReleaseError if cibuildwheel would not build what is built here."""
    show = ["--print-build-identifiers", "--platform", "linux", "--archs", "x86_64,aarch64"]
    found = set(run(tools, "-m", "cibuildwheel", *show, ROOT).split())
    machine = sysconfig.get_platform().removeprefix("linux-")
    lacking = {f"{tag_of(one)}-manylinux_{machine}" for one in pythons} - found
    if sys.platform == "linux" and lacking:
        raise ReleaseError(f"[tool.cibuildwheel] in pyproject.toml lacks {sorted(lacking)}")
    say(f"for cibuildwheel elsewhere: {' '.join(sorted(found))}")


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def check_version() -> str:
    """The version, which the change log must name. Raises ReleaseError."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if f"## [{version}] - " not in (ROOT / "CHANGELOG.md").read_text():
        raise ReleaseError(
            f"CHANGELOG.md has no section [{version}]: users would not know what it changes."
            " Cut the section [Unreleased] first."
        )
    return version


def try_out(own: str, made: Path, bill: Path, tools: Path) -> None:
    """Install a distribution as a user of the Python `own` does, send and receive, stop, remove.

    A source distribution brings no compiled core: `pip install` must not need a compiler. The bill
    of materials names what the installation consists of. Raises ReleaseError.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-release-") as text:
        folder = Path(text)
        begun = time.monotonic()  # noqa: TID251
        run(own, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", made)
        headrace = folder / "venv" / "bin" / "headrace"
        _first_message(headrace, folder, is_compiled=made.suffix == ".whl")
        took_s = time.monotonic() - begun  # noqa: TID251
        listed = run(*pip, "list", "--format=freeze", "--exclude", "pip", "--exclude", "setuptools")
        count = len(listed.splitlines())
        site = next((folder / "venv" / "lib").iterdir()) / "site-packages"
        found = [one for one in site.rglob("*") if one.is_file()]
        size_mb = sum(one.stat().st_size for one in found if not is_of_pip(one, site)) / 1e6
        say(f"{made.name}: {count} packages, {size_mb:.0f} MB; first message after {took_s:.0f} s")
        if count > PACKAGES_MAX or size_mb > SIZE_MAX_MB:
            raise ReleaseError(
                f"{made.name} brings {count} packages and {size_mb:.0f} MB; at most {PACKAGES_MAX}"
                f" and {SIZE_MAX_MB} MB. Make new dependencies optional."
            )
        if took_s > FIRST_MESSAGE_MAX_S:
            raise ReleaseError(
                f"with {made.name} a user waits {took_s:.0f} s for the first message; at most"
                f" {FIRST_MESSAGE_MAX_S}. If this machine was busy, run it again when it is not."
            )
        bom = [tools, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        run(*bom, "--output-file", bill, folder / "venv")
        bill.write_text(without_files(bill.read_text()))
        if str(folder) in bill.read_text() or str(ROOT) in bill.read_text():
            raise ReleaseError(f"{bill} names folders of this machine: it differs in the next run")
        run(*pip, "uninstall", "--quiet", "--yes", "headrace")
        left = [path for path in site.rglob("headrace*") if path.exists()]
        if headrace.exists() or left:
            raise ReleaseError(f"uninstalling leaves {[str(one) for one in left][:3]}")


def without_files(bill: str) -> str:
    """A bill of materials without the paths of this machine, from which pip has installed."""
    read = json.loads(bill)
    for one in read["components"]:
        found = one.pop("externalReferences", [])
        kept = [link for link in found if not link["url"].startswith("file:")]
        if kept:
            one["externalReferences"] = kept
    return f"{json.dumps(read, indent=2)}\n"


def tag_of(python: str) -> str:
    """`cp311`, by which wheels name a version of CPython."""
    show = "import sys; print('cp%d%d' % sys.version_info[:2])"
    return run(python, "-c", show).strip()


def is_of_pip(path: Path, site: Path) -> bool:
    """Whether a file came with the empty environment."""
    return path.relative_to(site).parts[0].startswith(("pip", "setuptools", "pkg_resources"))


def _first_message(headrace: Path, folder: Path, *, is_compiled: bool) -> None:
    """Serve from the installed package, produce and consume. Raises ReleaseError."""
    serve = [headrace, "serve", "--data-dir", folder / "data", "--json"]
    addresses = ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603
        [*map(str, serve), *addresses],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    ) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stderr is not None
            ready = broker.stdout.readline()
            if not ready:
                raise ReleaseError(f"the broker does not start:\n{broker.stderr.read()[-1000:]}")
            kafka = json.loads(ready)["kafka"]
            run(headrace, "-b", kafka, "topic", "create", "orders", folder=folder)
            produced = subprocess.run(  # noqa: S603
                [headrace, "-b", kafka, "produce", "orders"],
                input="hello\n",
                text=True,
                capture_output=True,
                check=False,
            )
            shown = run(headrace, "-b", kafka, "consume", "orders", "--count", "1", folder=folder)
            if "hello" not in shown:
                raise ReleaseError(f"consumed {shown[:200]!r}; {produced.stderr[-300:]}")
        finally:
            broker.terminate()
            told = broker.stderr.read() if broker.stderr else ""
        if broker.wait(30):
            raise ReleaseError(f"the broker ended with code {broker.returncode}:\n{told[-1000:]}")
        if ("running as compiled core" in told) != is_compiled:
            expected = "the compiled core" if is_compiled else "pure Python"
            raise ReleaseError(f"the broker does not run {expected}:\n{told[-1000:]}")


def main() -> None:
    """Make a release, or say why there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="for compiled wheels")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    cache = ROOT / ".cache" / "release"
    try:
        version = check_version()
        say(f"1 of 5: headrace {version}; the tools")
        environments = {
            python: environment(cache / f"tools-{number}", python)
            for number, python in enumerate(options.python)
        }
        tools = next(iter(environments.values()))
        into: Path = options.into
        twice = (into, cache / "again")
        for folder in twice:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        say("2 of 5: source distributions and wheels, twice")
        for folder in twice:
            build_plain(tools, folder)
        say(f"3 of 5: wheels with compiled code for {len(environments)} Python, twice (minutes)")
        for python in environments.values():
            for folder in twice:
                build_compiled(python, folder)
        first, second = map(digests, twice)
        differing = sorted(name for name in first if first[name] != second.get(name))
        if differing or first.keys() != second.keys():
            raise ReleaseError(
                f"built twice, these differ: {differing or set(first) ^ set(second)}"
            )
        say("4 of 5: checks of the metadata")
        run(tools, "-m", "twine", "check", "--strict", *map(str, sorted(into.iterdir())))
        check_identifiers(tools, environments)
        say("5 of 5: an installation in an empty environment of each Python")
        bill = into / f"headrace-{version}.cdx.json"  # the same packages for each Python
        for python in environments:
            (wheel,) = into.glob(f"headrace-{version}-{tag_of(python)}-*.whl")
            try_out(python, wheel, bill, tools)
        source = into / f"headrace-{version}.tar.gz"
        try_out(options.python[0], source, cache / bill.name, tools)
        lines = [f"{digest}  {name}\n" for name, digest in digests(into).items()]
        (into / "SHA256SUMS").write_text("".join(lines))
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(cache / "again", ignore_errors=True)
    for path in sorted(into.iterdir()):
        print(f"  {path.stat().st_size / 1e6:7.2f} MB  {path.name}")
    say(f"ready in {into}: nothing was uploaded ({sysconfig.get_platform()})")


if __name__ == "__main__":
    main()
