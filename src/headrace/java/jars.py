"""Jars by pinned coordinates: a cache folder, filled from a Maven repository.

Invariants: a jar is used only after its SHA-256 was verified, and is moved into place atomically.
Jars come from Maven Central, or from the repository named by HEADRACE_MAVEN or by a mirror in
~/.m2/settings.xml. Callers decide which jars they need.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from headrace.errors import Fatal, Rejected, Retriable
from headrace.java.download import DownloadCorrupt, DownloadFailed, Downloads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CACHE_VARIABLE = "HEADRACE_CACHE"
MAVEN_VARIABLE = "HEADRACE_MAVEN"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
_REPORT_INTERVAL_S = 5
_NAMED_MAX = 3  # how many missing jars a message names; the others are counted
_MIRRORED = {"*", "central", "external:*"}


class JarUnavailable(Retriable):
    """A jar could not be downloaded."""


class JarCorrupt(Fatal):
    """A jar's SHA-256 is not the pinned one."""


@dataclass(frozen=True)
class Jar:
    """One pinned artifact."""

    organisation: str
    module: str
    revision: str
    sha256: str
    classifier: str = ""

    @classmethod
    def parse(cls, line: str) -> Jar:
        """Parse `organisation:module:revision[:classifier] sha256`. Raises Rejected."""
        try:
            coordinates, sha256 = line.split()
            organisation, module, revision, *classifier = coordinates.split(":")
            (classified,) = classifier or [""]
        except ValueError as error:
            raise Rejected(
                f"{line!r} is not ORGANISATION:MODULE:REVISION[:CLASSIFIER] SHA256"
            ) from error
        return cls(organisation, module, revision, sha256, classified)

    @property
    def file_name(self) -> str:
        """The file name in the cache."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.module}-{self.revision}{suffix}.jar"

    @property
    def path(self) -> str:
        """Its path in a Maven repository."""
        folder = self.organisation.replace(".", "/")
        return f"{folder}/{self.module}/{self.revision}/{self.file_name}"


def cache_folder() -> Path:
    """The folder of jars and the Java wrapper: $HEADRACE_CACHE, else ~/.cache/headrace."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "headrace"


def ensure_jars(jars: Sequence[Jar]) -> list[Path]:
    """Return the verified files of `jars`, downloading missing ones; reports progress on stderr.

    Raises JarUnavailable if a download fails, JarCorrupt if a hash does not match.
    """
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    if _missing(jars, folder):
        with _locked(folder / ".fetch.lock"):
            missing = _missing(jars, folder)  # another process may have downloaded them meanwhile
            if missing:
                _fetch(missing, folder)
    return [folder / jar.file_name for jar in jars]


def repository() -> str:
    """The URL of the Maven repository, without a trailing slash."""
    named = os.environ.get(MAVEN_VARIABLE) or _mirror(Path.home() / ".m2" / "settings.xml")
    return (named or MAVEN_CENTRAL).rstrip("/")


def _mirror(settings: Path) -> str | None:
    """The mirror of Maven Central in Maven's own settings, if any."""
    try:
        tree = ElementTree.parse(settings)  # noqa: S314 - the user's own file
    except (OSError, ElementTree.ParseError):
        return None
    for mirror in tree.iterfind("{*}mirrors/{*}mirror"):
        of = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        url = (mirror.findtext("{*}url") or "").strip()
        if url.startswith(("https://", "http://")) and _MIRRORED & {*of}:
            return url
    return None


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


def _fetch(jars: Sequence[Jar], target: Path) -> None:
    place = repository()
    downloads: Downloads | None = None
    for number, jar in enumerate(jars, 1):
        progress = _DownloadProgress(f"{jar.file_name} ({number} of {len(jars)})")
        try:
            downloads = downloads or Downloads()
            url = f"{place}/{jar.path}"
            downloads.fetch(url, target / jar.file_name, jar.sha256, progress)
        except DownloadFailed as error:
            raise JarUnavailable(
                f"{_names(jars[number - 1 :])} could not be downloaded ({error}). Check the"
                f" network; set another Maven repository with {MAVEN_VARIABLE}; or put the"
                f" files into {target} yourself.",
                jars=[jar.file_name for jar in jars[number - 1 :]],
            ) from error
        except DownloadCorrupt as error:
            raise JarCorrupt(str(error), jar=jar.file_name) from error


class _DownloadProgress:
    """Reports on stderr what is downloaded, with progress if it takes long."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next_s = time.monotonic() + 1

    def __call__(self, count: int, size: int | None) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s and count != size:
            return
        self._next_s = now_s + _REPORT_INTERVAL_S
        of = f" of {size / 1e6:.1f}" if size is not None else ""
        sys.stderr.write(f"headrace: downloading {self._name}: {count / 1e6:.1f}{of} MB\n")
        sys.stderr.flush()


def _names(jars: Sequence[Jar]) -> str:
    named = ", ".join(jar.file_name for jar in jars[:_NAMED_MAX])
    rest = len(jars) - _NAMED_MAX
    return f"{named} and {rest} more" if rest > 0 else named
