"""Apache Kafka's own Java client: how it is started, and its settings.

Invariants: the jars are pinned in `java_client/jars.txt`. The program is a single source file,
which Janino compiles at each start, so a runtime without a compiler suffices.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.java.installation import find_java_home
from headrace.java.jars import Jar, cache_folder, ensure_jars
from headrace_verify.blackbox.consumers import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from headrace_verify.blackbox.copier_sources import AssignedSource
from headrace_verify.blackbox.copying import Driver
from headrace_verify.blackbox.languages.child import CODECS, command_of, consume, produce
from headrace_verify.blackbox.languages.transactional_child import Producers
from headrace_verify.blackbox.transactional_libraries import TIMEOUTS_MS, TRY_S

if TYPE_CHECKING:
    from headrace_verify.blackbox.context import Context

_SOURCE: Final = Path(__file__).with_name("java_client") / "KafkaClient.java"
_FLAGS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def find_command(source: Path = _SOURCE, *flags: str) -> list[str]:
    """The command that starts a program, with more flags of Java's; downloads its jars first if
    they are not cached. The file `jars.txt` beside it lists them.

    Raises JavaMissing, JarUnavailable, JarCorrupt.
    """
    java_home = find_java_home(cache_folder())
    lines = source.with_name("jars.txt").read_text().splitlines()
    jars = ensure_jars([Jar.parse(line) for line in lines if not line.startswith("#")])
    classpath = os.pathsep.join(map(str, jars))
    compiler = ["org.codehaus.janino.SimpleCompiler", str(source), source.stem]
    return [str(java_home / "bin" / "java"), *_FLAGS, *flags, "-cp", classpath, *compiler]


def run_java_producer(context: Context) -> None:
    """Idempotent; `compressed` or not."""
    is_compressed = bool(context.spec.options.get("compressed"))
    settings = _settings(context) | {
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": context.rng.choice((0, 1, 20)),
        "compression.type": context.rng.choice(CODECS) if is_compressed else "none",
        "request.timeout.ms": 5_000,
        "delivery.timeout.ms": 3_600_000,
        "max.block.ms": 10_000,
    }
    produce(context, command_of(context, settings, "producer"))


def run_java_member(context: Context) -> None:
    """A member of the classic protocol, eager or cooperative."""
    settings = _settings(context) | {
        "group.id": context.spec.group,
        "partition.assignment.strategy": _ASSIGNORS[context.spec.options["strategy"]],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "max.poll.interval.ms": 20_000,
        "max.poll.records": 200,
        "isolation.level": context.spec.options["isolation"],
        "request.timeout.ms": 11_000,
    }
    topics = ",".join(context.spec.topics)
    consume(context, command_of(context, settings, "member", topics))


def run_java_copier(context: Context) -> None:
    """Copies in transactions of version 2 (KIP-890); it reads without a library."""
    timeout_ms = context.rng.choice(TIMEOUTS_MS)
    settings = _settings(context) | {
        "transactional.id": context.spec.name.partition("~")[0],
        "transaction.timeout.ms": timeout_ms,
        "linger.ms": context.rng.choice((0, 1, 5)),
        "request.timeout.ms": 4_000,
        "delivery.timeout.ms": 6_000,
        "max.block.ms": int(TRY_S * 1000),
    }
    with Producers(command_of(context, settings, "transactional")) as producers:
        Driver(
            context, lambda _id: producers.instance(timeout_ms / 1000), AssignedSource(context)
        ).run()


def _settings(context: Context) -> dict[str, object]:
    """Settings shared by producers and members."""
    return {
        "bootstrap.servers": context.spec.bootstrap,
        "client.id": context.spec.name,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 250,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
        "socket.connection.setup.timeout.ms": 4_000,
    }
