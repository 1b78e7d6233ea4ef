"""Queues in black-box runs: share groups over HTTP, Kafka and RocketMQ's protocol; delays, half
messages, retries, dead letters.

Invariants: uses the groups and topics of the simulation's workload, and a dead letter topic. A run
ends when the brokers report that nothing is left of any group; then each message must have been
settled, and none may be delivered again, even after all brokers were killed once more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from headrace.records.codec import iterate_records
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.parts import Part, Role
from headrace_verify.blackbox.payload import number_of
from headrace_verify.blackbox.queue_consumers import HttpFace, QueueConsumer, Received
from headrace_verify.blackbox.raw_clients import note_ends
from headrace_verify.blackbox.read_back import read_back
from headrace_verify.blackbox.routing import RETRIABLE, RETRY_S, Connection, Place
from headrace_verify.blackbox.web import OK_STATUS, Web
from headrace_verify.history import DEAD, DRAINED, OK, read_history
from headrace_verify.kafka_wire import KafkaWire, Refused
from headrace_verify.workloads import QUEUE_GROUPS, QUEUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_verify.blackbox.parts import Clients
    from headrace_verify.blackbox.queue_consumers import QueueFace

WORKLOAD = WORKLOADS[QUEUES]
DEAD_TOPIC = "q-dead"
DEAD_PARTITIONS = 6
"""In a cluster, each broker that has dead letters needs one."""
DEAD_LETTERS = {
    "share.delivery.count.limit": "5",
    "errors.deadletterqueue.topic.name": DEAD_TOPIC,
}


class Reading(NamedTuple):
    """Share groups, what they read, and where they send what they give up."""

    groups: Mapping[str, Mapping[str, str]]
    """Name -> settings."""
    topics: Mapping[str, int]
    """Name -> partitions."""
    dead_topic: str

    @property
    def places(self) -> list[tuple[str, int]]:
        """The partitions that each group reads."""
        return [(topic, part) for topic, n in self.topics.items() for part in range(n)]


GROUPS = {
    "shared": QUEUE_GROUPS["shared"] | DEAD_LETTERS,
    "ordered": QUEUE_GROUPS["ordered"] | DEAD_LETTERS | {"headrace.share.expired": "dead-letter"},
}
READING = Reading(GROUPS, WORKLOAD.topics, DEAD_TOPIC)
ONE_PARTITION = {name: count for name, count in WORKLOAD.topics.items() if count == 1}
ALTER_CONFIGS, TOPIC_RESOURCE, GROUP_RESOURCE, SET = 44, 2, 32, 0
PATIENCE_S = 30.0
READ_PATIENCE_S = 60.0
LAST_WAIT_MS = 300
LAST_ROUNDS = 3
DEAD_HEADERS = "__dlq.errors."


def _role(
    name: str, kind: str, rate_per_s: int = 0, group: str | None = None, *, is_quick: bool = True
) -> Role:
    return Role(
        name, kind, rate_per_s, group, is_quick=is_quick, part=QUEUES, topics=WORKLOAD.topics
    )


def _library(language: str) -> Iterator[Role]:
    """RocketMQ's official client for a language."""
    for name, kind, rate_per_s, group in (
        ("sender", "producer", 20, None),
        ("shared", "consumer", 0, "shared"),
        ("ordered", "consumer", 0, "ordered"),
    ):
        role = _role(
            f"rocketmq-{language}-{name}", f"rocketmq-library-{kind}", rate_per_s, group,
            is_quick=False,
        )  # fmt: skip
        if rate_per_s:
            role = role._replace(topics=ONE_PARTITION)
        yield role._replace(language=f"rocketmq-{language}")


ROLES = (
    _role("queue-idempotent", "queue-producer", 40),
    _role("queue-named", "http-producer", 20, is_quick=False),
    _role("http-shared", "http-consumer", group="shared"),
    _role("http-ordered-a", "http-consumer", group="ordered"),
    _role("http-ordered-b", "http-consumer", group="ordered"),
    _role("http-ordered-c", "http-consumer", group="ordered", is_quick=False),
    _role("librdkafka-shared", "share-consumer", group="shared"),
    _role("librdkafka-ordered", "share-consumer", group="ordered", is_quick=False),
    _role("rocketmq-sender", "rocketmq-producer", 20)._replace(topics=ONE_PARTITION),
    _role("rocketmq-shared", "rocketmq-consumer", group="shared"),
    _role("rocketmq-ordered", "rocketmq-consumer", group="ordered"),
    *_library("python"),
    *_library("java"),
    *_library("node"),
    *_library("go"),
)


# --- set-up --------------------------------------------------------------------------------------


def prepare(context: Context) -> None:
    """Configure topics and groups. Raises OSError."""
    configure_all(context, WORKLOAD.configs, GROUPS)


def configure_all(
    context: Context,
    topics: Mapping[str, Mapping[str, str]],
    groups: Mapping[str, Mapping[str, str]],
) -> None:
    """Change settings of topics and groups. Raises OSError."""
    connection = Connection(context, PATIENCE_S)
    for kind, named in ((TOPIC_RESOURCE, topics), (GROUP_RESOURCE, groups)):
        for name, configs in named.items():
            configure(connection, kind, name, configs)
    connection.drop()


def configure(connection: Connection, kind: int, name: str, configs: Mapping[str, str]) -> None:
    """Change settings of a resource. Raises OSError."""
    listed = [{"name": key, "config_operation": SET, "value": configs[key]} for key in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": listed}

    def change(wire: KafkaWire) -> None:
        done = wire.call(ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
        code = int(done.responses[0].error_code)
        if code:
            raise Refused(code)

    connection.until_answered(change)


# --- finish --------------------------------------------------------------------------------------


def settle_all(reading: Reading, crew: Clients, context: Context, within_s: float) -> Iterator[str]:
    """Wait until no group has messages left; recorded as `drained`."""
    web, connection = Web(context), Connection(context)
    deadline_ns = now_ns() + int(within_s * 1e9)
    left: dict[str, str] = dict.fromkeys(reading.groups, "never asked")
    upto: list[list[Any]] = []
    while left and now_ns() < deadline_ns:
        context.pause(2 * RETRY_S)
        try:
            upto = [
                [*place, note_ends(context, connection.wire(Place(*place)), *place)[1]]
                for place in reading.places
            ]
            for group in list(left):
                what = _describe_backlog(web, group, reading)
                if what:
                    left[group] = what
                else:
                    del left[group]
                    context.history.write(OK, DRAINED, group=group, upto=upto, dead=True)
        except OSError as error:
            connection.failed(error)
    connection.drop()
    web.close()
    is_calendar_set = _was_calendar_set(crew)
    for group, what in left.items():
        if is_calendar_set:
            context.note("not drained", group=group, left=what)
            context.history.write(OK, DRAINED, group=group, upto=upto, dead=True)
        else:
            yield f"not alive: after {within_s} s, group {group} still has: {what}"


def _describe_backlog(web: Web, group: str, reading: Reading) -> str:
    """Describe what a group has left on all partitions. Raises OSError."""
    missing = set(reading.places)
    for at in range(len(web.addresses)):
        for topic in reading.topics:
            delayed = web.get(at, f"/v1/topics/{quote(topic)}/delayed?limit=1")
            if delayed.status == OK_STATUS and delayed.body["delayed"]:
                return f"delayed messages of {topic}: {delayed.body['delayed'][0]}"
            answer = web.get(at, f"/v1/queues/{quote(topic)}/{quote(group)}")
            if answer.status != OK_STATUS or delayed.status != OK_STATUS:
                return f"no answer from {topic}: {answer}, {delayed.status}"
            for one in answer.body["partitions"]:
                if one["lag"] or one["in_flight"] or one["waiting_for_dead_letter_copy"]:
                    return f"{topic}: {one}"
                missing.discard((topic, one["partition"]))
    return f"partitions that the group never started: {sorted(missing)}" if missing else ""


def _was_calendar_set(crew: Clients) -> bool:
    """Whether a wall clock jumped in this run: delayed messages may be due in an hour."""
    events = read_history(crew.folder / "run.jsonl")
    return any(event.get("fault") == "clock" for event in events)


# --- final reads ---------------------------------------------------------------------------------


def read_back_all(
    reading: Reading, context: Context, face: QueueFace | None = None
) -> Iterator[str]:
    """Read the logs, the dead letters, and what groups still receive (by HTTP unless `face` is
    given): nothing."""
    yield from read_back(context, reading.topics)
    yield from _read_dead_letters(context, reading.dead_topic)
    web = Web(context)
    for group in reading.groups:
        consumer = QueueConsumer(context, group, face or HttpFace(group, web))
        for at in range(consumer.address_count):
            for topic in reading.topics:
                _receive_the_rest(context, consumer, at, topic)
    web.close()


def _receive_the_rest(context: Context, consumer: QueueConsumer, at: int, topic: str) -> None:
    """Acknowledge whatever is received: the checkers judge whether it should have been."""
    for _ in range(LAST_ROUNDS):
        try:
            found: list[Received] = consumer.receive(at, topic, 100, LAST_WAIT_MS)
        except OSError:
            context.pause(RETRY_S)
            continue
        if not found:
            return
        consumer.settle({("accept", 0): found})


def _read_dead_letters(context: Context, topic: str) -> Iterator[str]:
    connection = Connection(context, PATIENCE_S)
    deadline_ns = now_ns() + int(READ_PATIENCE_S * 1e9)
    for part in range(DEAD_PARTITIONS):
        place = Place(topic, part)
        while True:
            try:
                _read_dead_partition(context, connection.wire(place), place)
                break
            except OSError as error:
                is_final = isinstance(error, Refused) and error.code not in RETRIABLE
                connection.failed(error)
                if is_final or now_ns() > deadline_ns:
                    yield f"{topic}-{part} cannot be read: {error}"
                    break
                context.pause(RETRY_S)
    connection.drop()


def _read_dead_partition(context: Context, wire: KafkaWire, place: Place) -> None:
    """Record every copy with its origin. Raises OSError."""
    position, end = note_ends(context, wire, *place)
    while position < end:
        data, end = wire.fetch(*place, position)
        records = [one for one in iterate_records(data) if one.offset >= position]
        for record in records:
            known = {
                name.removeprefix(DEAD_HEADERS): (text or b"").decode()
                for name, text in record.headers
                if name.startswith(DEAD_HEADERS)
            }
            context.history.write(
                OK, DEAD, group=known["group"], topic=known["topic"], part=int(known["partition"]),
                offset=int(known["offset"]), value=number_of(record.value),
                at=[place.part, record.offset], reason=known.get("message", ""),
                deliveries=int(known.get("delivery.count", 0)),
            )  # fmt: skip
        if not records:
            return
        position = records[-1].offset + 1


settle = partial(settle_all, READING)
read_back_queues = partial(read_back_all, READING)
PART = Part(
    QUEUES,
    ROLES,
    WORKLOAD.topics | {DEAD_TOPIC: DEAD_PARTITIONS},
    ("acquire ok", "settle ok", "drained ok", "dead ok"),
    prepare,
    settle,
    read_back_queues,
)
