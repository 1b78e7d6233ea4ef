"""RocketMQ 5's official clients, unchanged, through every lane, and Kafka's and HTTP's beside them.

Each program (`rocketmq_clients`) does the same in another language, and prints what came. Java's
and Go's begin with TLS, the others with plain text, at the same port.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from itertools import count, product
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from google.protobuf import descriptor_pb2
from tests.integration.certificates import Certificates
from tests.integration.foreign import (
    HERE,
    built_in_go,
    built_in_rust,
    built_once,
    installed_for_node,
    pinned_jars,
    require_javac,
    run,
)

from headrace.java.jars import Jar, ensure_jars
from headrace.rocketmq import wire
from headrace_verify.blackbox.languages import rocketmq as rocketmq_python

SOURCES = HERE / "rocketmq_clients"
TIMEOUT_S = 150
ORDERED = {"a": [f"a{number}" for number in range(4)], "b": [f"b{number}" for number in range(4)]}
SUBSCRIBED = (("a", 5), ("b", 4), ("c", 0))
"""(lite topic, messages that come)"""
LANES = {
    "normal": (
        "normal",
        {"messages": [[str(n), "t", f"k{n}", str(n), 1] for n in range(10)]},
    ),
    "batch": ("normal", {"receipts": 10, "messages": [str(n) for n in range(10)]}),
    "fifo": ("fifo", ORDERED),
    "delay": ("delay", {"messages": ["kept"], "is_early": False, "is_late": False}),
    "recall": ("delay", {"messages": ["kept"]}),
    "transaction": ("transaction", {"messages": ["checked", "committed"]}),
    "filters": ("normal", {"messages": ["0", "1", "3"]}),
    "sql": ("normal", {"messages": ["2", "3"]}),
    "priority": ("priority", {"messages": [["9", 9], ["5", 5], ["3", 3], ["1", 1]]}),
    "push": ("normal", {"seen": [["0", 1], ["1", 1], ["1", 2], ["2", 1]]}),
    "push_fifo": ("fifo", ORDERED),
    "lite": ("lite", {name: [f"{name}{n}" for n in range(count)] for name, count in SUBSCRIBED}),
    "dead": ("normal", {"attempts": [1, 2], "letters": [["poison", "t"]]}),
}
"""(the topic's message type, what the program prints)"""
LACKING = {
    *product(["go"], ["priority", "recall", "lite"]),
    *product(["rust"], ["priority", "recall", "push", "push_fifo", "lite"]),
    *product(["python", "go", "node", "java"], ["batch"]),
}
"""What a client cannot do in its newest version."""
OLDER = [
    tuple(line.split())
    for line in (SOURCES / "older.txt").read_text().splitlines()
    if not line.startswith("#")
]
"""(language, version, checksums...)"""
LANES_OF_OLDER = [lane for lane in LANES if lane not in {"batch", "recall", "priority", "lite"}]
CLIENT_OF_PYTHON = "rocketmq-python-client"
CLIENT_OF_GO = "github.com/apache/rocketmq-clients/golang/v5"
CLIENT_OF_JAVA = "org.apache.rocketmq:rocketmq-client-java"
LACKING_IN_OLDER = {
    *product(["python"], ["5.0.1", "5.0.6"], ["push", "push_fifo", "dead"]),
    *product(["go"], ["v5.1.2"], ["push", "push_fifo", "dead"]),
    ("java", "5.0.0", "push_fifo"),
}
"""Python's and Go's have no push consumers; Java's of 5.0.0 takes one message of
message groups every 10 s, although it has received the next ones."""
_numbers = count(1)


# --- the programs ------------------------------------------------------------------------------


def pins_of(language: str, version: str) -> list[str]:
    """The checksums of an older version."""
    (found,) = [pins for one, of, *pins in OLDER if (one, of) == (language, version)]
    return found


def python_program(version: str = "") -> tuple[list[str], dict[str, str]]:
    """(command, environment) of each program; `version`: an older one than the newest."""
    text = rocketmq_python.LOCK.read_text()
    if version:
        pin = f"{CLIENT_OF_PYTHON}=={version} --hash={pins_of('python', version)[0]}\n"
        pinned = rf"^{CLIENT_OF_PYTHON}==.*?(?=^\S|\Z)"
        text = re.sub(pinned, pin, text, flags=re.MULTILINE | re.DOTALL)
    return [str(rocketmq_python.find_python(text)), str(SOURCES / "client.py")], {}


def go_program(version: str = "") -> tuple[list[str], dict[str, str]]:
    source = SOURCES / "go"
    if not version:
        return built_in_go(
            "rocketmq-go", source, ("main.go", "recent.go", "steady.go", "go.mod", "go.sum")
        )
    own, of_mod = pins_of("go", version)
    sums = f"{CLIENT_OF_GO} {version} {own}\n{CLIENT_OF_GO} {version}/go.mod {of_mod}\n"
    texts = {
        "main.go": (source / "main.go").read_text(),
        "older.go": (source / "older" / "older.go").read_text(),
        "go.mod": re.sub(
            rf"{CLIENT_OF_GO} v\S+", f"{CLIENT_OF_GO} {version}", (source / "go.mod").read_text()
        ),
        "go.sum": (source / "go.sum").read_text() + sums,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
        return built_in_go("rocketmq-go", Path(folder), tuple(texts))


def node_program(version: str = "") -> tuple[list[str], dict[str, str]]:
    assert not version, "see older.txt"
    return installed_for_node("rocketmq-node", SOURCES / "node", "client.mjs")


def java_program(version: str = "") -> tuple[list[str], dict[str, str]]:
    runtime, compiler = require_javac()
    source = SOURCES / "java"
    if version:
        jars = ensure_jars([Jar.parse(f"{CLIENT_OF_JAVA}:{version} {pins_of('java', version)[0]}")])
        names = [source / "RocketClient.java"]
    else:
        jars = pinned_jars(source / "jars.txt")
        names = [source / f"{one}.java" for one in ("RocketClient", "RecentLanes", "Steady")]
    classpath = os.pathsep.join(map(str, jars))
    with built_once("rocketmq-java", [compiler, "--version"], [*names, *jars]) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            files = map(str, names)
            run([compiler, "-nowarn", "-d", str(partial), "-cp", classpath, *files], source)
            partial.replace(folder)
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [runtime, *flags, "-cp", f"{folder}{os.pathsep}{classpath}", "RocketClient"], {}


def rust_program(version: str = "") -> tuple[list[str], dict[str, str]]:
    assert not version, "see older.txt"
    return built_in_rust("rocketmq-rust", SOURCES / "rust", ("src/main.rs",)), {}


PROGRAMS = {
    "python": python_program,
    "go": go_program,
    "node": node_program,
    "java": java_program,
    "rust": rust_program,
}
LONG_TO_BUILD = {"rust"}
"""Its 250 libraries take 100 s of CPU."""


# --- one broker for all of them ------------------------------------------------------------------


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory):
    from tests.integration.broker import Broker

    broker = Broker(tmp_path_factory.mktemp("rocketmq"), "--rocketmq", "127.0.0.1:0")
    broker.start()
    yield broker
    broker.stop()
    faults = [line for line in broker.log().splitlines() if " ERROR " in line or "Trace" in line]
    assert not faults, faults[:5]


def address(broker) -> str:
    """The address for RocketMQ's clients."""
    return json.loads((broker.log_path.parent / "ready.json").read_text())["rocketmq"]


def patch(broker, path: str, body: dict) -> None:
    request = urllib.request.Request(
        f"http://{broker.http.partition(',')[0]}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def post(broker, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://{broker.http.partition(',')[0]}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def fresh(broker, lane: str, message_type: str, partitions: int = 2) -> tuple[str, str]:
    """A topic and a group of a test's own."""
    number = next(_numbers)
    topic, group = f"{lane}-{number}", f"group-{number}"
    config = {"headrace.message.type": message_type}
    if lane == "priority":
        partitions = 1  # the order of priorities is that of a partition
    post(broker, "/v1/topics", {"name": topic, "partitions": partitions, "config": config})
    settings = {"share.auto.offset.reset": "earliest"}
    if lane == "push_fifo":
        patch(
            broker,
            f"/v1/groups/{group}/config",
            {"set": settings | {"headrace.share.key.order": "true"}},
        )
    elif lane == "dead":
        settings |= {"share.delivery.count.limit": "2"}
        settings |= {"errors.deadletterqueue.topic.name": f"letters-{number}"}
        patch(broker, f"/v1/groups/{group}/config", {"set": settings})
    return topic, group


def run_program(
    program: tuple[list[str], dict[str, str]], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    command, environment = program
    return subprocess.run(
        [*command, *arguments],
        env=os.environ | environment | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def output_of(program: tuple[list[str], dict[str, str]], *arguments: str, **more: str) -> dict:
    done = run_program(program, *arguments, **more)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def long_unless(is_quick: bool, language: str) -> tuple:
    """The marks of a test."""
    return () if is_quick and language not in LONG_TO_BUILD else (pytest.mark.long,)


def cells(*quick: str) -> list:
    """Parameters of a test of every (language, lane); those with none of the quick lanes, and
    those of programs that are long to build, are long.
    docs/ROCKETMQ.md has a table of them (tests/documents/test_rocketmq_lanes.py)."""
    return [
        pytest.param(*pair, marks=long_unless(not quick or pair[1] in quick, pair[0]))
        for pair in product(PROGRAMS, LANES)
        if pair not in LACKING
    ]


def goes_through(program: tuple, at: str, broker, lane: str, partitions: int = 2) -> None:
    """Run a lane of a program at an address of the broker."""
    message_type, expected = LANES[lane]
    topic, group = fresh(broker, lane, message_type, partitions)
    assert output_of(program, at, lane, topic, group) == expected


ON_ONE_BROKER = cells()
BY_WORKERS = cells("fifo", "transaction")


@pytest.mark.parametrize(("language", "lane"), ON_ONE_BROKER)
def test_an_official_client_gets_what_it_expects(rocketmq, language, lane):
    goes_through(PROGRAMS[language](), address(rocketmq), rocketmq, lane)


@pytest.mark.parametrize("language", ["python", "go", "java"])
def test_a_namespace_of_a_client_is_a_prefix_of_its_topics_and_groups(rocketmq, language):
    """In all calls: also where the client is asked about a transaction. Node's names it in some
    calls and not in others, and Rust's has none."""
    message_type, expected = LANES["transaction"]
    topic, group = fresh(rocketmq, "team.of", message_type)
    short, short_group = topic.removeprefix("team."), f"of-{group}"
    at, named = address(rocketmq), {"HEADRACE_NAMESPACE": "team"}
    assert output_of(PROGRAMS[language](), at, "transaction", short, short_group, **named) == (
        expected
    )
    left = post(rocketmq, f"/v1/queues/{topic}/team.{short_group}/receive", {"max": 1})
    assert left["messages"] == [], "the group has acknowledged them"


OF_OLDER_CLIENTS = [
    pytest.param(*pins[:2], lane, marks=() if lane == "normal" else pytest.mark.long)
    for pins, lane in product(OLDER, LANES_OF_OLDER)
    if (*pins[:2], lane) not in LACKING_IN_OLDER
]


@pytest.mark.parametrize(("language", "version", "lane"), OF_OLDER_CLIENTS)
def test_an_older_client_gets_what_it_expects(rocketmq, language, version, lane):
    goes_through(PROGRAMS[language](version), address(rocketmq), rocketmq, lane)


PUBLISHED = """
from rocketmq.grpc_protocol import definition_pb2, service_pb2
for file in (definition_pb2, service_pb2):
    print(file.DESCRIPTOR.serialized_pb.hex())
"""


def described_in(file: bytes) -> dict[str, list[tuple]]:
    """The fields of each message, and the values of each enum."""
    kinds = descriptor_pb2.FieldDescriptorProto
    described = descriptor_pb2.FileDescriptorProto.FromString(file)
    found = {
        message.name: [
            (
                one.name,
                one.number,
                one.label,
                one.type,
                one.type_name if one.type == kinds.TYPE_ENUM else "",
                one.proto3_optional and one.type != kinds.TYPE_MESSAGE,
            )
            for one in message.field
        ]
        for message in described.message_type
    }
    inner = [(f"{one.name}.", enum) for one in described.message_type for enum in one.enum_type]
    for prefix, enum in [*(("", one) for one in described.enum_type), *inner]:
        found[prefix + enum.name] = [(one.name, one.number) for one in enum.value]
    return found


def test_the_messages_and_enums_are_those_of_the_official_client():
    (python, _script), _environment = python_program()
    published = subprocess.check_output([python, "-c", PUBLISHED], text=True).split()
    own = described_in(wire.FILE)
    for file in published:
        expected = described_in(bytes.fromhex(file))
        assert {name: own.get(name) for name in expected} == expected


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    from tests.integration.broker import Broker

    broker = Broker(
        tmp_path_factory.mktemp("workers"), "--workers", "2", "--rocketmq", "127.0.0.1:0"
    )
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.parametrize(("language", "lane"), BY_WORKERS)
def test_a_client_of_one_worker_uses_what_both_have(workers, language, lane):
    first, _second = address(workers).split(",")
    goes_through(PROGRAMS[language](), first, workers, lane)


def test_kafka_and_http_read_what_a_rocketmq_client_wrote(rocketmq):
    topic, group = fresh(rocketmq, "normal", "normal")
    output_of(python_program(), address(rocketmq), "normal", topic, group)

    consumer = Consumer(
        {
            "bootstrap.servers": rocketmq.kafka,
            "group.id": group + "-kafka",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found = {}
    while len(found) < 10:
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        found[record.value()] = dict(record.headers())
    consumer.close()
    assert found[b"3"]["headrace-tag"] == b"t"
    assert found[b"3"]["headrace-keys"] == b"k3"
    assert found[b"3"]["n"] == b"3"
    assert len(found[b"3"]["headrace-message-id"]) == 34
    received = post(rocketmq, f"/v1/queues/{topic}/{group}/receive", {"max": 10})
    assert received["messages"] == [], "the group has acknowledged them"


def test_a_rocketmq_client_receives_what_a_kafka_producer_wrote(rocketmq):
    topic, group = fresh(rocketmq, "normal", "normal")
    producer = Producer({"bootstrap.servers": rocketmq.kafka})
    for number in range(20):
        headers = {"headrace-tag": "t", "n": str(number)}
        producer.produce(topic, str(number), key=f"k{number}", headers=headers)
    assert producer.flush(30) == 0

    shown = output_of(python_program(), address(rocketmq), "normal", topic, group)

    first = sorted(shown["messages"])[:5]
    assert all(row[1] == "t" and row[2] == f"k{row[0]}" and row[3] == row[0] for row in first)


# --- the guide: coming from RocketMQ --------------------------------------------------------------

GUIDE = (
    (HERE.parents[1] / "docs" / "ROCKETMQ.md").read_text().partition("## Coming from RocketMQ")[2]
)


def headrace(broker, command: str) -> str:
    """Type a command of the guide."""
    program, *arguments = command.split()
    assert program == "headrace"
    typed = [sys.executable, "-m", "headrace.cli.main", *arguments, "--bootstrap", broker.kafka]
    done = subprocess.run(typed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def test_the_guide_creates_topics_and_an_ordered_group_and_moves_a_topic(make_broker, tmp_path):
    """The source is a broker of ours: the client and its calls are the same as for RocketMQ."""
    old, new = (make_broker("--rocketmq", "127.0.0.1:0") for _ in range(2))
    commands = re.findall(r"^    (headrace .*)$", GUIDE, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        headrace(new, command)
    headrace(old, "headrace topic create orders --type fifo --partitions 2")
    for group in ("first", "mirror"):
        headrace(old, f"headrace group set {group} --ordered --start earliest")
    client, _environment = python_program()
    assert output_of((client, {}), address(old), "fifo", "orders", "first") == ORDERED

    mirror = tmp_path / "mirror.py"
    mirror.write_text(re.findall(r"```py\n(.*?)```", GUIDE, re.DOTALL)[0])
    for copied in (8, 0):
        arguments = (address(old), address(new), "orders", "mirror")
        assert output_of(([client[0], str(mirror)], {}), *arguments) == copied

    received = []
    while len(received) < 8:
        found = post(new, "/v1/queues/orders/billing/receive", {"max": 8, "wait_ms": 5_000})
        received += found["messages"]
        if receipts := [one["receipt"] for one in found["messages"]]:
            post(new, "/v1/queues/orders/billing/settle", {"ack": receipts})
    old.stop()
    new.stop()


# --- access keys ---------------------------------------------------------------------------------

PASSWORD = "of the tests' admin"


class Signed:
    """A broker whose RocketMQ listener authenticates, with the super user admin and alice."""

    def __init__(self, folder, *options: str) -> None:
        from tests.integration.broker import Broker

        self.broker = Broker(
            folder,
            *("--rocketmq", "127.0.0.1:0"),
            *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT"),
            *("--http-security-protocol", "SASL_PLAINTEXT"),
            *("--sasl-enabled-mechanisms", "PLAIN"),
            *("--super-users", "User:admin"),
            *options,
        )
        for user in ("admin", "alice"):
            where = ("--password-file", "-", "--data-dir", str(self.broker.data_dir))
            self.headrace("user", "add", user, *where, text=f"{PASSWORD}\n")
        self.broker.start()
        self.login = ["--bootstrap", self.broker.kafka, "-Xsecurity.protocol=SASL_PLAINTEXT"]
        self.login += ["-Xsasl.mechanism=PLAIN", "-Xsasl.username=admin"]
        self.login += [f"-Xsasl.password={PASSWORD}"]

    @staticmethod
    def headrace(*arguments: str, text: str | None = None) -> str:
        command = [sys.executable, "-m", "headrace.cli.main", *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def key(self, user: str) -> dict[str, str]:
        """The environment of a client that has a new key of a user."""
        name = f"key-{next(_numbers)}"
        made = ("key", "create", name, "--for", "rocketmq", "--user", user, "--json")
        found = json.loads(self.headrace(*made, *self.login))
        assert found["secret"] not in self.headrace("key", "list", "--json", *self.login)
        return {"HEADRACE_ACCESS_KEY": found["id"], "HEADRACE_ACCESS_SECRET": found["secret"]}

    def topic(self) -> str:
        name = f"signed-{next(_numbers)}"
        self.headrace("topic", "create", name, "--partitions", "2", *self.login)
        return name


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    made = Signed(
        tmp_path_factory.mktemp("signed"), "--rocketmq-security-protocol", "SASL_PLAINTEXT"
    )
    yield made
    made.broker.stop()


REFUSED = re.compile("40100|unauthorized", re.IGNORECASE)
DENIED = re.compile("40300|forbidden", re.IGNORECASE)


def assert_fails(done: subprocess.CompletedProcess[str], code: re.Pattern, language: str) -> None:
    """The client reports the code; Python's says only that it has no route."""
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert code.search(shown) or (language == "python" and "failed to fetch topic" in shown), shown


@pytest.mark.parametrize(
    "language", [pytest.param(name, marks=long_unless(True, name)) for name in PROGRAMS]
)
def test_a_client_signs_with_its_key_and_gets_what_its_user_may_use(signed, language):
    program, where = PROGRAMS[language](), address(signed.broker)
    mine, secret = signed.topic(), signed.topic()
    group = f"group-of-{mine}"
    for role in ("producer", "consumer"):
        of = () if role == "producer" else ("--group", group)
        rule = ("--principal", "User:alice", "--role", role, "--topic", mine, *of)
        signed.headrace("acl", "add", *rule, *signed.login)
    alice = signed.key("alice")

    assert output_of(program, where, "normal", mine, group, **alice) == LANES["normal"][1]

    for topic in (secret, "no-such-topic"):
        done = run_program(program, where, "normal", topic, group, **alice)
        assert_fails(done, DENIED, language)
        assert f"TOPIC:{topic}" in signed.broker.log()

    wrong = alice | {"HEADRACE_ACCESS_SECRET": "hrs_" + "x" * 43}
    assert_fails(run_program(program, where, "normal", mine, group, **wrong), REFUSED, language)
    assert f"another secret than that of access key {alice['HEADRACE_ACCESS_KEY']}" in (
        signed.broker.log()
    )
    assert alice["HEADRACE_ACCESS_SECRET"] not in signed.broker.log()


def test_a_key_that_is_revoked_is_refused(signed):
    topic, admin = signed.topic(), signed.key("admin")
    where = (address(signed.broker), "normal", topic, f"group-of-{topic}")
    assert output_of(python_program(), *where, **admin) == LANES["normal"][1]
    signed.headrace("key", "revoke", admin["HEADRACE_ACCESS_KEY"], "--yes", *signed.login)
    assert_fails(run_program(go_program(), *where, **admin), REFUSED, "go")


def test_clients_sign_over_tls_too(tmp_path):
    """Java's and Go's clients begin with TLS and take any certificate."""
    certificate = Certificates(tmp_path / "certificates").broker
    protocol = ("--rocketmq-security-protocol", "SASL_SSL")
    made = Signed(tmp_path, *protocol, "--ssl-keystore-location", str(certificate))
    try:
        topic, admin = made.topic(), made.key("admin")
        where = (address(made.broker), "normal", topic, f"group-of-{topic}")
        assert output_of(go_program(), *where, **admin) == LANES["normal"][1]
        assert_fails(run_program(go_program(), *where), REFUSED, "go")
    finally:
        made.broker.stop()
