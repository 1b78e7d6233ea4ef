"""Jars by pinned coordinates: a cache folder, filled by the Ivy that pyspark ships.

Rules of the room: a jar is used only after its SHA-256 was checked, and moved into place in one
step. Ivy fetches from wherever its settings point: no address is named here. Which jars there
are is for others to say.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from headrace.errors import Fatal, Rejected, Retriable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CACHE_VARIABLE = "HEADRACE_CACHE"
_FETCH_TIMEOUT_S = 600
_NAMED_MAX = 3  # so many missing jars are named in a message; the others are counted

_IVY_FILE = """<ivy-module version="2.0">
<info organisation="headrace" module="jars"/>
<dependencies>
{}
</dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    "<dependency org={} name={} rev={} conf='default->master' transitive='false'>"
    "<artifact name={} type='jar' ext='jar'/></dependency>"
)


class JarUnavailable(Retriable):
    """A jar could not be fetched."""


class JarCorrupt(Fatal):
    """A jar's SHA-256 is not the pinned one."""


@dataclass(frozen=True)
class Jar:
    """One pinned artifact."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @classmethod
    def parse(cls, line: str) -> Jar:
        """Read `organisation:module:revision sha256`. Raises Rejected."""
        try:
            coordinates, sha256 = line.split()
            organisation, module, revision = coordinates.split(":")
        except ValueError as error:
            raise Rejected(f"{line!r} is not ORGANISATION:MODULE:REVISION SHA256") from error
        return cls(organisation, module, revision, sha256)

    @property
    def file_name(self) -> str:
        """The name under which the cache keeps it."""
        return f"{self.module}-{self.revision}.jar"


def cache_folder() -> Path:
    """Where jars and the Java wrapper live: $HEADRACE_CACHE, else ~/.cache/headrace."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "headrace"


def ensure_jars(java_home: Path, jars: Sequence[Jar]) -> list[Path]:
    """The verified files of `jars`, fetched where the cache has them not.

    Raises JarUnavailable when a fetch fails, JarCorrupt when a hash is wrong.
    """
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    if _missing(jars, folder):
        with _locked(folder / ".fetch.lock"):
            missing = _missing(jars, folder)  # another process may have brought them meanwhile
            if missing:
                _fetch(missing, folder, java_home)
    return [folder / jar.file_name for jar in jars]


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _missing(jars: Sequence[Jar], folder: Path) -> list[Jar]:
    return [
        jar
        for jar in jars
        if not (folder / jar.file_name).is_file() or sha256_of(folder / jar.file_name) != jar.sha256
    ]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _fetch(jars: Sequence[Jar], target: Path, java_home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as name:
        folder = Path(name)
        wanted = (
            _DEPENDENCY.format(
                *map(quoteattr, (jar.organisation, jar.module, jar.revision, jar.module))
            )
            for jar in jars
        )
        (folder / "ivy.xml").write_text(_IVY_FILE.format("\n".join(wanted)))
        command = [
            str(java_home / "bin" / "java"), "-Xmx128m", "-jar", str(_ivy()), "-warn",
            "-cache", str(folder / "ivy"), "-ivy", str(folder / "ivy.xml"), "-types", "jar",
            "-retrieve", f"{folder}/[artifact]-[revision].[ext]",
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - our own Java and pyspark's own Ivy
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise JarUnavailable(
                f"{_names(jars)} could not be fetched: no answer in {_FETCH_TIMEOUT_S} s;"
                " check the network and try again."
            ) from error
        absent = [jar for jar in jars if not (folder / jar.file_name).is_file()]
        if absent:
            last = (done.stdout + done.stderr).strip().splitlines()[-3:]
            raise JarUnavailable(
                f"{_names(absent)} could not be fetched ({' '.join(last)}). "
                "Check the network; where it has certificates of its own, name a trust store in "
                f"JAVA_TOOL_OPTIONS; or put the files into {target} yourself.",
                jars=[jar.file_name for jar in absent],
            )
        for jar in jars:
            actual = sha256_of(folder / jar.file_name)
            if actual != jar.sha256:
                raise JarCorrupt(
                    f"{jar.file_name} has SHA-256 {actual}, pinned is {jar.sha256}: it is not"
                    " used. Look at where this machine gets its jars from.",
                    jar=jar.file_name,
                )
            (folder / jar.file_name).replace(target / jar.file_name)


def _names(jars: Sequence[Jar]) -> str:
    named = ", ".join(jar.file_name for jar in jars[:_NAMED_MAX])
    rest = len(jars) - _NAMED_MAX
    return f"{named} and {rest} more" if rest > 0 else named


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarUnavailable(
            "jars are fetched by the Ivy that comes with pyspark, which is not installed here: "
            "pip install 'headrace[pipeline]'."
        )
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarUnavailable("pyspark's folder has no ivy-*.jar: install pyspark from its wheel.")
    return found[0]
