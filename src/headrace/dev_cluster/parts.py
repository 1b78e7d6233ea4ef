"""The parts of a real ZooKeeper and real bookies: a Java, pinned jars, and JVM flags.

Invariants: knows where the parts come from, not what is run with them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from headrace.java.installation import find_java_home
from headrace.java.jars import Jar, cache_folder, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Small and quick to start: these processes serve tests and a developer, not a production load.
_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.4lw.commands.whitelist=*",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default of 64 MiB is zeroed on creation
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
)
_LOG4J = """status = error
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ABSOLUTE} %p %c{1} %m%n%xEx
"""


@dataclass(frozen=True)
class Parts:
    """A Java and the classes of BookKeeper and ZooKeeper."""

    java: Path
    classpath: str
    archives: Path | None = None
    """Where class-data-sharing archives are kept: they halve a start's CPU time."""

    def command(self, folder: Path, heap_mb: int, main: str, *arguments: str) -> list[str]:
        """The command line to run `main` with a small heap; `folder` holds its log settings.

        If there is no archive of its classes yet, the process leaves one in `folder` when it ends.
        """
        settings = folder / "log4j2.properties"
        if not settings.exists():
            settings.write_text(_LOG4J)
        return [
            str(self.java),
            f"-Xmx{heap_mb}m",
            f"-XX:MaxDirectMemorySize={heap_mb}m",
            *_FLAGS,
            *self._archive_flags(folder, main),
            f"-Dlog4j2.configurationFile={settings}",
            "-cp",
            self.classpath,
            main,
            *arguments,
        ]

    def keep_archive(self, folder: Path, main: str) -> None:
        """Keep the archive that `main` left in `folder` after a normal exit."""
        left = folder / f"{main}.jsa"
        if self.archives is not None and left.exists() and left.stat().st_size:
            partial = self.archives / f"{main}.{os.getpid()}.partial"
            shutil.copyfile(left, partial)
            partial.replace(self.archives / f"{main}.jsa")
            left.unlink()

    def _archive_flags(self, folder: Path, main: str) -> list[str]:
        if self.archives is None:
            return []
        archive, left = self.archives / f"{main}.jsa", folder / f"{main}.jsa"
        if archive.exists():  # Java checks that it matches its version and the jars
            return [f"-XX:SharedArchiveFile={archive}"]
        claim = left.with_suffix(".claimed")
        if claim.exists():
            return []  # one process is enough
        claim.touch()
        return [f"-XX:ArchiveClassesAtExit={left}"]


def pinned_jars() -> Sequence[Jar]:
    """BookKeeper's and ZooKeeper's jars, as `jars.txt` lists them."""
    text = (files(__package__) / "jars.txt").read_text()
    return [Jar.parse(line) for line in text.splitlines() if not line.startswith("#")]


def find_parts() -> Parts:
    """The parts, downloading what the cache lacks (a minute or two, once).

    Raises JavaMissing, JarUnavailable, JarCorrupt.
    """
    java_home = find_java_home(cache_folder())
    paths = ensure_jars(pinned_jars())
    java = java_home / "bin" / "java"
    what = f"{java.resolve()} {java.stat().st_mtime_ns} {paths}"
    archives = cache_folder() / "java-archives" / hashlib.sha256(what.encode()).hexdigest()[:16]
    archives.mkdir(parents=True, exist_ok=True)
    return Parts(java, os.pathsep.join(map(str, paths)), archives)
