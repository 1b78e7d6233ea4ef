"""Fetching the two jars that Spark does not bring: Iceberg's runtime and SQLite's JDBC driver.

Rules of the room: pinned by coordinates and SHA-256; a jar is used only after its hash was
checked, and moved into place in one step. The fetching is done by the Ivy that pyspark ships,
from wherever its settings point: no address is named here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.pipeline.errors import JarCorrupt, JarUnavailable

CACHE_VARIABLE = "HEADRACE_CACHE"
_FETCH_TIMEOUT_S = 600


@dataclass(frozen=True)
class Jar:
    """One pinned artifact."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name under which the cache keeps it."""
        return f"{self.module}-{self.revision}.jar"


ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
SQLITE = Jar(
    "org.xerial",
    "sqlite-jdbc",
    "3.50.3.0",
    "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
)
PINNED = (ICEBERG, SQLITE)


def cache_folder() -> Path:
    """Where jars and the Java wrapper live: $HEADRACE_CACHE, else ~/.cache/headrace."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "headrace"


def ensure_jars(java_home: Path, jars: tuple[Jar, ...] = PINNED) -> list[Path]:
    """The verified files of `jars`, fetched where the cache has them not.

    Raises JarUnavailable when a fetch fails, JarCorrupt when a hash is wrong.
    """
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        target = folder / jar.file_name
        if not (target.is_file() and sha256_of(target) == jar.sha256):
            _fetch(jar, target, java_home)
    return [folder / jar.file_name for jar in jars]


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch(jar: Jar, target: Path, java_home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        command = [
            str(java_home / "bin" / "java"), "-Xmx128m", "-jar", str(_ivy()), "-warn",
            "-cache", str(Path(folder) / "ivy"), "-notransitive", "-types", "jar",
            "-dependency", jar.organisation, jar.module, jar.revision,
            "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - our own Java and pyspark's own Ivy
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise JarUnavailable(f"{jar.file_name}: no answer in {_FETCH_TIMEOUT_S} s.") from error
        fetched = Path(folder) / jar.file_name
        if done.returncode != 0 or not fetched.is_file():
            last = (done.stdout + done.stderr).strip().splitlines()[-3:]
            raise JarUnavailable(
                f"{jar.file_name} could not be fetched ({' '.join(last)}). "
                "Check the network; where it has certificates of its own, name a trust store in "
                f"JAVA_TOOL_OPTIONS; or put the file into {target.parent} yourself.",
                jar=jar.file_name,
            )
        actual = sha256_of(fetched)
        if actual != jar.sha256:
            raise JarCorrupt(
                f"{jar.file_name} has SHA-256 {actual}, pinned is {jar.sha256}: it is not used.",
                jar=jar.file_name,
            )
        fetched.replace(target)


def _ivy() -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarUnavailable("pyspark's folder has no ivy-*.jar: install pyspark from its wheel.")
    return found[0]
