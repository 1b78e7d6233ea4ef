"""One quiet SparkSession, with the Iceberg catalog that Spark and pyiceberg share.

Invariants: uses loopback addresses, and this interpreter for the workers, unless a master is given;
prints only our own warnings. The catalog's name is part of its rows, so it is the same on both
sides.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.java.installation import find_java_home
from headrace.java.jars import cache_folder, ensure_jars
from headrace.pipeline.jars import jars_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipeline.warehouse import Warehouse

_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
# A killed or retried task tells its story in the exception that Python raises.
logger.quiet.name = org.apache.spark
logger.quiet.level = fatal
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_LOG_BYTES_MAX = 10 << 20
_TASK_FAILURES_MAX = 4
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

# Spark names its zipped PySpark first in PYTHONPATH, and Python compiles what it imports from there
# anew in each process, which takes longer than all else that a process does before it reads.
_WORKER_PYTHON = """#!/bin/sh
set -f; IFS=:; rest=
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip) ;;
    *) rest=$rest${rest:+:}$entry ;;
  esac
done
PYTHONPATH=$rest exec %s "$@"
"""


class JavaProcess:
    """Java, as far as this process has started it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ended = False
        """Whether `end` was called: then none starts any more."""

    def start(self, *words: Any, **given: Any) -> subprocess.Popen[bytes]:
        """As subprocess.Popen."""
        self._process = subprocess.Popen(*words, **given)  # noqa: S603 - of pyspark
        if self.is_ended:
            self._process.kill()
        return self._process

    def end(self, wait_s: float = 0.0) -> None:
        """End Java, now or when it is about to start: the calls that wait for it raise an error."""
        self.is_ended = True
        logging.disable()  # py4j logs each call that fails then, with a traceback
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()


JAVA = JavaProcess()
"""That of this process: Spark has one."""


@dataclass(frozen=True)
class SessionConfig:
    """The parameters of a session.

    `short_run` trades peak speed for a quick start. Output of Java and the workers goes to
    `log_file` (default: spark.log in the cache folder).
    """

    master: str = "local[*]"
    app_name: str = "headrace"
    warehouse: Warehouse | None = None
    memory_mb: int = 1024
    shuffle_partitions: int = 2
    short_run: bool = False
    log_file: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)


def make_session(config: SessionConfig) -> Any:
    """Create this process's SparkSession; it finds the data source `headrace` by itself.

    Raises JavaMissing, JarUnavailable or JarCorrupt. The caller calls `stop()`.
    """
    java_home = find_java_home(cache_folder())
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if config.master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = worker_python()
    # Spark's launcher script searches and warns if this names another installation.
    os.environ.pop("SPARK_HOME", None)
    from pyspark.sql import SparkSession

    settings = settings_of(config, ensure_jars(jars_for(config.warehouse)))
    _start_java(settings, config.log_file or cache_folder() / "spark.log")
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    _hush()
    return builder.getOrCreate()


def _hush() -> None:
    """Keep Spark from writing each error of SQL to stderr, with Java's stack: whoever asked gets it
    as an exception."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def given_or_own(spark: Any, config: SessionConfig) -> Iterator[Any]:
    """`spark`, or without it a session that is stopped at the end; where the process has one
    already, one with settings of its own beside that, which is left as it is. Raises as
    `make_session`."""
    if spark is not None:
        yield spark
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - pyspark has no public way
        theirs: Any = SparkSession.builder.getOrCreate()
        java = theirs._jsparkSession.newSession()  # noqa: SLF001
        yield SparkSession(theirs.sparkContext, java, settings_of(config, []))
        return
    made = make_session(config)
    try:
        yield made
    finally:
        made.stop()


def session_for(spark: Any, warehouse: Warehouse) -> Any:
    """A session of its own on the same Spark: settings, such as the id of a staged commit, and the
    catalog that a name stands for, are those of this session alone."""
    own = spark.newSession()
    for name, value in warehouse.spark_settings().items():
        own.conf.set(name, value)
    return own


def adopt(spark: Any) -> None:
    """Make `spark` this thread's active session, which streams look up."""
    java = spark._jvm  # noqa: SLF001 - pyspark has no public way
    java.org.apache.spark.sql.classic.SparkSession.setActiveSession(
        spark._jsparkSession  # noqa: SLF001
    )


def _start_java(settings: dict[str, str], log_file: Path) -> None:
    """Start Java as Spark does, unless it runs already, but with its stderr in a log: this
    process's own is left alone."""
    from pyspark import SparkConf, SparkContext, java_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 - pyspark has no public way
        return
    conf = SparkConf().setAll(list(settings.items()))
    log_file.parent.mkdir(parents=True, exist_ok=True)
    is_long = log_file.is_file() and log_file.stat().st_size > _LOG_BYTES_MAX
    with log_file.open("w" if is_long else "a") as log:
        library: Any = java_gateway  # has no types
        library.Popen = JAVA.start  # known while it starts, not only once it answers
        gateway = library.launch_gateway(conf, popen_kwargs={"stderr": log})
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def settings_of(config: SessionConfig, jars: list[Path]) -> dict[str, str]:
    """Return a session's Spark settings; `config.settings` come last and take precedence."""
    flags = [f"-Dlog4j2.configurationFile={_log4j_file()}", "-XX:+UseSerialGC", "-Xss4m"]
    if config.short_run:
        # Saves a third of the CPU in a run of a minute, but is slower by half in one of an hour.
        flags.append("-XX:TieredStopAtLevel=1")
    settings = {
        "spark.master": with_retries(config.master),
        "spark.app.name": config.app_name,
        "spark.driver.memory": f"{config.memory_mb}m",
        "spark.driver.extraJavaOptions": " ".join(flags),
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        # Rows on their way to a Python writer: Spark sums up the batch's size after each row, which
        # for a list column costs a pass over it. With 10,000 rows per batch it is 5 times slower.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Spark's own pattern, with the secrets of the client's settings that it does not know.
        "spark.redaction.regex": r"(?i)secret|password|token|access[.-]?key|credential|jaas|[.]pem",
        "spark.speculation": "false",  # two concurrent attempts would write a row twice
        "spark.python.worker.reuse": "true",
        # An eighth less CPU for rows that pass between Java and Python than over TCP.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if config.master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    if config.warehouse is not None:
        settings["spark.sql.extensions"] = _EXTENSIONS
        settings |= config.warehouse.spark_settings()
    return settings | config.settings


def with_retries(master: str) -> str:
    """`local[n]` fails at a task's first failure; under load, a worker may start too late."""
    found = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{found.group(1)},{_TASK_FAILURES_MAX}]" if found else master


def worker_python() -> str:
    """The path of an interpreter as this one, for Spark's Python processes on this machine, which
    imports PySpark from this environment; this one where that cannot be had."""
    import pyspark

    path = _cached("worker-python", _WORKER_PYTHON % shlex.quote(sys.executable), 0o755)
    # Spark's own launcher may have found PySpark in the zip; a folder may be mounted with noexec.
    is_of_use = Path(pyspark.__file__).is_file() and os.access(path, os.X_OK)
    return path if is_of_use else sys.executable


def _log4j_file() -> str:
    return _cached("log4j2.properties", _LOG4J, 0o644)


def _cached(name: str, text: str, mode: int) -> str:
    """The path of a file of the cache folder with this text, in a folder of the text's own: several
    installations may share the cache."""
    target = cache_folder() / sha256(text.encode()).hexdigest()[:16] / name
    if not target.is_file() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as partial:
            partial.write(text)
        Path(partial.name).chmod(mode)
        Path(partial.name).replace(target)
    return str(target)
