"""Kafka Streams, Kafka Connect and MirrorMaker 2, exactly once, killed and started again.

Nothing in them knows of Headrace: they are Apache Kafka's own jars, with the settings their
documentation asks for.
"""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.integration.java import _classpath
from tests.integration.raw import Raw, error_codes
from tests.integration.tenants import share
from tests.integration.test_transactions import fresh, read_all, read_pairs

from headrace.dev_cluster.ports import free_port
from headrace.java.jars import Jar, ensure_jars
from headrace_bench.kafka_parts import KAFKA_VERSION, java

SOURCES = Path(__file__).with_name("java_apps")
MOVING = Path(__file__).parents[2] / "docs" / "MOVING.md"
START_TIMEOUT_S = 90
END_TIMEOUT_S = 180
LINES = 20_500
LOG4J = """
rootLogger.level=warn
rootLogger.appenderRef.e.ref=E
appender.e.type=Console
appender.e.name=E
appender.e.target=SYSTEM_ERR
appender.e.layout.type=PatternLayout
appender.e.layout.pattern=%d %p %c{1} %m%n%xEx
"""


def _jars() -> list[Jar]:
    """One of each module, of the Kafka that is asked for where there are several."""
    lines = (SOURCES / "jars.txt").read_text().splitlines()
    chosen: dict[str, Jar] = {}
    for jar in (Jar.parse(line) for line in lines if line[0] != "#"):
        if jar.module not in chosen or jar.revision == KAFKA_VERSION:
            chosen[jar.module] = jar
    return list(chosen.values())


def _libraries() -> str:
    return os.pathsep.join(map(str, [_classpath(), *ensure_jars(_jars())]))


class App:
    """One of Kafka's applications in a JVM of its own: started, killed, started again."""

    def __init__(self, folder: Path, *command: str, classes: Path | None = None) -> None:
        self.folder, self.command = folder, command
        self.log_path = folder / "app.log"
        (folder / "log4j2.properties").write_text(LOG4J)
        self.classpath = f"{classes or folder}{os.pathsep}{_libraries()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
                    *("-cp", self.classpath, *self.command),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait(self, what: str, holds, timeout_s: float = END_TIMEOUT_S) -> None:
        """Until `holds()`; the application must live meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert self.process is not None
            log = self.log_path.read_text(errors="replace")[-3000:]
            assert self.process.poll() is None, f"it ended:\n{log}"
            assert time.monotonic() < deadline, f"not in time: {what}\n{log}"
            time.sleep(0.2)


@pytest.fixture
def apps(tmp_path):
    """Makes applications and ends them."""
    made: list[App] = []

    def make(name: str, *command: str, classes: Path | None = None) -> App:
        (tmp_path / name).mkdir()
        made.append(App(tmp_path / name, *command, classes=classes))
        return made[-1]

    yield make
    for app in made:
        app.kill()


@pytest.fixture(scope="module")
def word_count(tmp_path_factory):
    """The folder of its classes."""
    compiler = shutil.which("javac") or str(Path(java()).with_name("javac"))
    if not Path(compiler).exists():
        pytest.skip("no Java compiler (javac): install a JDK 17 or 21")
    folder = tmp_path_factory.mktemp("word-count")
    command = [compiler, "-nowarn", "-d", str(folder), "-cp", _libraries()]
    done = subprocess.run(
        [*command, str(SOURCES / "WordCount.java")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_streams_counts_each_word_once(broker, apps, word_count):
    words, counts = fresh("words"), fresh("counts")
    create_topic(broker.kafka, words, 2)
    create_topic(broker.kafka, counts, 2)
    state = fresh("state")
    given = ("WordCount", broker.kafka, fresh("count"), words, counts, state)
    app = apps("streams", *given, classes=word_count)
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            producer.produce(words, b"word%d" % (number % 7))
        assert producer.flush(30) == 0
        sent += count

    def counted_beyond(before: int) -> bool:
        return len(read_all(broker, counts, "read_uncommitted")) > before

    for _ in range(2):
        send(1_000)
        before = len(read_all(broker, counts, "read_uncommitted"))
        app.start()
        app.wait("it counts", partial(counted_beyond, before))
        app.kill()
    send(100)
    app.start()
    app.wait("all words are counted", lambda: len(read_all(broker, counts)) >= sent)

    counted = collections.Counter(int.from_bytes(value) for value in read_all(broker, counts))
    words_with = collections.Counter(number % 7 for number in range(sent)).values()
    assert counted == collections.Counter(n for most in words_with for n in range(1, most + 1))


STREAMS_GROUP_DESCRIBE, ALTER_CONFIGS, GROUP_CONFIGS = 89, 44, 32


def streams_members(broker, group: str) -> list:
    """The members of a streams group, as the broker describes them."""
    with Raw(broker.address) as raw:
        (described,) = raw.call(STREAMS_GROUP_DESCRIBE, 0, group_ids=(group,)).groups
    return list(described.members)


def tasks_of(member) -> list[tuple[str, int]]:
    """The active tasks that a member has."""
    return [
        (ids.subtopology_id, number)
        for ids in member.assignment.active_tasks
        for number in ids.partitions
    ]


def set_group_config(broker, group: str, name: str, value: str) -> None:
    change = {"name": name, "config_operation": 0, "value": value}
    with Raw(broker.address) as raw:
        resources = [{"resource_type": GROUP_CONFIGS, "resource_name": group, "configs": [change]}]
        assert error_codes(raw.call(ALTER_CONFIGS, 1, resources=resources)) == [0]


EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"


@pytest.mark.parametrize(
    ("guarantee", "whose"),
    [
        (EXACTLY_ONCE, ""),
        (EXACTLY_ONCE, "a tenant's"),
        (EXACTLY_ONCE, "another tenant's"),
        (AT_LEAST_ONCE, ""),
    ],
)
def test_streams_of_the_new_protocol_share_tasks_and_count_exactly(
    request, apps, word_count, guarantee, whose
):
    """Two processes, one killed and started again: what they count is exact in the end. `whose`
    topic they count."""
    source, counts, group = fresh("words"), fresh("counts"), fresh("count")
    words = source
    if whose:
        owner, reader = request.getfixturevalue("tenants")
    else:
        owner = reader = request.getfixturevalue("broker")
    broker = reader if whose == "another tenant's" else owner
    create_topic(owner.kafka, source, 4)
    create_topic(broker.kafka, counts, 4)
    if broker is not owner:
        words = fresh("partner-words")
        share(owner, source, words)
    first, second = (
        apps(
            name, "WordCount", broker.kafka, group, words, counts, fresh("state"),
            "group.protocol=streams", f"processing.guarantee={guarantee}", "num.stream.threads=2",
            classes=word_count,
        )
        for name in ("first", "second")
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": owner.kafka, "enable.idempotence": True})
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            producer.produce(source, b"word%d" % (number % 7), partition=number % 4)
        assert producer.flush(30) == 0
        sent += count

    def is_shared_by(count: int) -> bool:
        """Whether so many processes have all eight tasks among them."""
        members = streams_members(broker, group)
        tasks = [task for member in members for task in tasks_of(member)]
        processes = {member.process_id for member in members if tasks_of(member)}
        return len(processes) == count and len({*tasks}) == len(tasks) == 8

    send(1_000)
    set_group_config(broker, group, "streams.session.timeout.ms", "6000")
    first.start()
    second.start()
    first.wait("both have tasks", partial(is_shared_by, 2))
    first.wait("they count", lambda: len(read_all(broker, counts)) >= 500)
    second.kill()
    send(500)
    first.wait("the first has all tasks", partial(is_shared_by, 1))
    second.start()
    first.wait("both have tasks again", partial(is_shared_by, 2))
    send(100)

    def last_counts() -> dict[bytes, int]:
        return {key: int.from_bytes(value) for key, value in read_pairs(broker, counts)}

    wanted = {
        b"word%d" % word: count
        for word, count in collections.Counter(number % 7 for number in range(sent)).items()
    }
    if guarantee == EXACTLY_ONCE:
        first.wait("all words are counted", lambda: len(read_all(broker, counts)) >= sent)
        counted = collections.Counter(int.from_bytes(value) for value in read_all(broker, counts))
        assert counted == collections.Counter(
            n for most in wanted.values() for n in range(1, most + 1)
        )
        assert last_counts() == wanted
    else:  # a record whose offset was not committed in time is counted again
        first.wait(
            "all words are counted",
            lambda: all(last_counts().get(word, 0) >= count for word, count in wanted.items()),
        )


def rest(port: int, path: str, body: object = None) -> object:
    """What Connect's REST service answers; None while it cannot."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}", data, {"Content-Type": "application/json"},
        method="GET" if data is None else "PUT",
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@pytest.mark.long
def test_a_connect_source_is_exactly_once(broker, apps, tmp_path):
    lines = tmp_path / "lines.txt"
    # The connector keeps what is left in its buffer when a batch was full, until the file grows: so
    # the last batch is not a full one.
    lines.write_text("".join(f"{number}\n" for number in range(1, LINES + 1)))
    port, topic, cluster = free_port(), fresh("lines"), fresh("connect")
    app = apps("connect", "org.apache.kafka.connect.cli.ConnectDistributed", "connect.properties")
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": cluster,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "exactly.once.source.support": "enabled",
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "only_scan",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1500,
        "rebalance.timeout.ms": 10000,
        "scheduled.rebalance.max.delay.ms": 1000,
    }
    for name in ("offset", "config", "status"):
        settings |= {f"{name}.storage.topic": f"{cluster}-{name}"}
        settings |= {f"{name}.storage.replication.factor": 1}
    (app.folder / "connect.properties").write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    )
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(lines),
        "topic": topic,
        "batch.size": 900,
        "exactly.once.support": "required",
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.partitions": 1,
    }
    create_topic(broker.kafka, topic)

    app.start()
    place = "connectors/lines/config"
    app.wait("its REST service", lambda: rest(port, place, connector), START_TIMEOUT_S)
    app.wait("it copies", lambda: read_all(broker, topic))
    app.kill()
    app.start()
    app.wait("all lines", lambda: len(read_all(broker, topic)) >= LINES)

    assert sorted(map(int, read_all(broker, topic))) == list(range(1, LINES + 1))


@pytest.mark.long
def test_mirrormaker_copies_exactly_once(broker, apps, tmp_path):
    topic, values = fresh("mirrored"), [b"%05d" % number for number in range(5_000)]
    create_topic(broker.kafka, topic, 2)
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0
    target = Broker(tmp_path / "target").start()
    try:
        app = apps("mirror", "org.apache.kafka.connect.mirror.MirrorMaker", "mm2.properties")
        (page,) = re.findall(r"```properties\n(.*?)```", MOVING.read_text(), re.DOTALL)
        settings = dict(line.split("=", 1) for line in page.splitlines()) | {
            "a.bootstrap.servers": broker.kafka,
            "b.bootstrap.servers": target.kafka,
            "a->b.topics": topic,
            "listeners": f"http://127.0.0.1:{free_port()}",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1500,
            "a.consumer.max.poll.records": 100,
        }
        (app.folder / "mm2.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )

        def copied() -> list[bytes]:
            try:
                return read_all(target, f"a.{topic}")
            except KeyError:  # the topic is not there yet
                return []

        app.start()
        app.wait("it copies", copied)
        app.kill()
        app.start()
        app.wait("all records", lambda: len(copied()) >= len(values))
        assert copied() == values
    finally:
        target.stop()
