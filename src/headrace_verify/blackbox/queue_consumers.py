"""Consumers of queues: over HTTP (and RocketMQ's protocol), and through confluent-kafka's share
consumer.

Invariants: a settlement is recorded before it is requested: if the client is killed, it is in
doubt. Each receive over HTTP is a separate member, as for the broker; its messages are locked until
the lock ends, regardless of the connection. A library may have received its messages earlier than
it delivers them, and its locks end with its connections: its deliveries are `loose`. Some messages
are poison: they are never acknowledged, so they exceed their delivery limit.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote

from headrace.records.attributes import MESSAGE_GROUP
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.payload import number_of
from headrace_verify.blackbox.routing import RETRY_S
from headrace_verify.blackbox.web import OK_STATUS, Web
from headrace_verify.history import ACQUIRE, FAIL, INFO, OK, SETTLE
from headrace_verify.workloads import QUEUE_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

POISON = 41
"""One value in this many is never acknowledged."""
LOCK_MS = int(QUEUE_GROUPS["shared"]["share.record.lock.duration.ms"])
BACKOFFS_MS = [
    int(wait) for wait in QUEUE_GROUPS["shared"]["headrace.share.retry.backoff.ms"].split(",")
]
SHORT_LOCK_MS = 1_200
WAIT_MS = 300
EXTEND_MS = 5_000
KEEP_NS = int((LOCK_MS + 800) * 1e6)
"""How long an extended message is held: longer than its lock would have lasted."""
FIELDS = {"accept": "ack", "release": "nack", "renew": "extend", "dead": "dead_letter"}
FINAL_STEP = "correct the request before you retry it"
"""Final rejections by the broker; after any other error, the effect is unknown."""
NOWHERE_S = 0.3


class Received(NamedTuple):
    """A message that a member holds."""

    member: str
    at: int
    """Number of the address that delivered it."""
    topic: str
    part: int
    offset: int
    value: int
    key: str | None
    """What orders it in its group: its message group, or its key in a group with key order."""
    deliveries: int
    receipt: str


def is_poison(value: int) -> bool:
    """Whether it is never acknowledged."""
    return value % POISON == 0


def is_ordered(group: str) -> bool:
    """Whether a group preserves key order."""
    return QUEUE_GROUPS.get(group, {}).get("headrace.share.key.order") == "true"


def order_key(group: str, message_group: str | None, key: str | None) -> str | None:
    """See Received.key."""
    return message_group or (key if is_ordered(group) else None)


def backoff_ms(deliveries: int) -> int:
    """The group's back-off for a message after this many failed deliveries."""
    return BACKOFFS_MS[min(max(deliveries, 1), len(BACKOFFS_MS)) - 1]


class QueueFace(Protocol):
    """How a protocol receives and settles, for a consumer that decides the rest."""

    @property
    def address_count(self) -> int:
        """How many brokers it can ask."""
        ...

    @property
    def locks_ms(self) -> Sequence[int]:
        """How long messages may be locked; one is drawn for each receive."""
        ...

    @property
    def more(self) -> Mapping[str, Any]:
        """What the history says of its deliveries, in addition."""
        ...

    def way(self, how: str, wait_ms: int) -> tuple[str, int]:
        """How the protocol expresses a settlement."""
        ...

    def receive(
        self, at: int, topic: str, count: int, wait_ms: int, lock_ms: int
    ) -> list[Received]:
        """Messages from the broker at address number `at`, without a member. Raises OSError."""
        ...

    def settle(
        self, at: int, topic: str, ways: Mapping[tuple[str, int], Sequence[Received]]
    ) -> dict[str, bool]:
        """Receipt -> whether it was settled, or certainly was not; absent: unknown."""
        ...


class QueueConsumer:
    """Receives and settles."""

    def __init__(self, context: Context, group: str, face: QueueFace) -> None:
        self._context = context
        self._group = group
        self._face = face
        self._receives = 0
        self._kept: list[tuple[int, Received]] = []
        """Extended messages: (when to settle them, message)."""

    @property
    def address_count(self) -> int:
        """How many brokers it can ask."""
        return self._face.address_count

    def receive(self, at: int, topic: str, count: int, wait_ms: int) -> list[Received]:
        """Receive from one broker, and record it. Raises OSError."""
        since_ns, lock_ms = now_ns(), self._context.rng.choice(self._face.locks_ms)
        shown = self._face.receive(at, topic, count, wait_ms, lock_ms)
        self._receives += 1
        member = f"{self._context.spec.name}#{self._receives}"
        found = [one._replace(member=member) for one in shown]
        if found:
            more = self._face.more
            note_acquired(self._context, since_ns, self._group, found, lock=lock_ms, **more)
        return found

    def work(self, topic: str, at: int) -> None:
        """Receive once and settle, and settle messages held until now. Raises OSError."""
        rng = self._context.rng
        found = self.receive(at, topic, rng.choice((1, 3, 20)), WAIT_MS)
        ways: dict[tuple[str, int], list[Received]] = {}
        for one in found:
            way = self._way(one)
            if way is not None:
                ways.setdefault(self._face.way(*way), []).append(one)
            if way is not None and way[0] == "renew":
                self._kept.append((now_ns() + KEEP_NS, one))
        if rng.random() < 0.3:
            self._context.pause(rng.random() * 0.5)
        self.settle(ways)
        due = [one for until_ns, one in self._kept if until_ns <= now_ns()]
        if due:
            self._kept = [entry for entry in self._kept if entry[1] not in due]
            for one in due:
                self.settle({("accept", 0): [one]})

    def _way(self, one: Received) -> tuple[str, int] | None:
        """How to settle it, and its delay; None: let its lock expire."""
        rng = self._context.rng
        draw = rng.random()
        if is_poison(one.value):
            return "release", rng.choice((-1, 0, 400))
        if draw < 0.78:
            return "accept", 0
        if draw < 0.88:
            return "release", rng.choice((-1, 0, 300, 1_500))
        if draw < 0.92:
            return "dead", 0
        return ("renew", EXTEND_MS) if draw < 0.96 else None

    def settle(self, ways: Mapping[tuple[str, int], list[Received]]) -> None:
        """Request it, once for each broker and topic; if in doubt, once more. Records
        everything."""
        for at, topic in sorted({(one.at, one.topic) for many in ways.values() for one in many}):
            chosen = {
                way: [one for one in many if (one.at, one.topic) == (at, topic)]
                for way, many in ways.items()
            }
            doubtful = self._settle_at(at, topic, chosen)
            if doubtful:
                self._context.pause(RETRY_S)
                other = self._context.rng.randrange(self._face.address_count)
                self._settle_at(other, topic, doubtful)

    def _settle_at(
        self, at: int, topic: str, ways: Mapping[tuple[str, int], list[Received]]
    ) -> dict[tuple[str, int], list[Received]]:
        """The settlements whose result is unknown."""
        notes = {
            one.receipt: _Note(self._context, self._group, way, one)
            for way, many in ways.items()
            for one in many
        }
        if not notes:
            return {}
        for receipt, is_settled in self._face.settle(at, topic, ways).items():
            notes.pop(receipt).end(OK if is_settled else FAIL)
        doubtful: dict[tuple[str, int], list[Received]] = {}
        for note in notes.values():
            note.end(INFO)
            doubtful.setdefault(note.way, []).append(note.message)
        return doubtful


class HttpFace:
    """See QueueFace."""

    locks_ms = (LOCK_MS, LOCK_MS, SHORT_LOCK_MS)
    more: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, group: str, web: Web) -> None:
        self._group = group
        self._web = web
        self.address_count = len(web.addresses)

    def way(self, how: str, wait_ms: int) -> tuple[str, int]:
        """See QueueFace."""
        return how, wait_ms

    def receive(
        self, at: int, topic: str, count: int, wait_ms: int, lock_ms: int
    ) -> list[Received]:
        """See QueueFace."""
        asked: dict[str, Any] = {"max": count, "wait_ms": wait_ms}
        if lock_ms != LOCK_MS:
            asked["lock_ms"] = lock_ms
        answer = self._web.post(at, self._path(topic, "receive"), asked)
        if answer.status != OK_STATUS:
            raise ConnectionError(f"receive failed: {answer}")
        return [
            Received(
                "", at, topic, one["partition"], one["offset"], _number_of(one),
                order_key(self._group, _group_of(one), one.get("key")),
                one["deliveries"], one["receipt"],
            )
            for one in answer.body["messages"]
        ]  # fmt: skip

    def settle(
        self, at: int, topic: str, ways: Mapping[tuple[str, int], Sequence[Received]]
    ) -> dict[str, bool]:
        """See QueueFace."""
        body: dict[str, list[dict[str, Any]]] = {}
        for (how, wait_ms), many in ways.items():
            name = "lock_ms" if how == "renew" else "delay_ms"
            wait = {name: wait_ms} if how in {"renew", "release"} else {}
            body.setdefault(FIELDS[how], []).extend({"receipt": m.receipt} | wait for m in many)
        results: list[dict[str, Any]] = []
        try:
            answer = self._web.post(at, self._path(topic, "settle"), body)
            if answer.status == OK_STATUS:
                results = answer.body["results"]
        except OSError:
            pass  # unknown
        return {
            one["receipt"]: bool(one["ok"])
            for one in results
            if one["ok"] or one["next_step"] == FINAL_STEP
        }

    def _path(self, topic: str, what: str) -> str:
        return f"/v1/queues/{quote(topic)}/{quote(self._group)}/{what}"


class _Note:
    """One settlement in the history: recorded at its request, and at its end."""

    def __init__(
        self, context: Context, group: str, way: tuple[str, int], message: Received
    ) -> None:
        self._context = context
        self.way = way
        self.message = message
        how, wait_ms = way
        self._fields: dict[str, Any] = {
            "since": now_ns(), "group": group, "member": message.member, "topic": message.topic,
            "how": how, "recs": [[message.part, message.offset]],
        }  # fmt: skip
        if how == "renew":
            self._fields["lock"] = wait_ms
        elif how == "release":
            self._fields["delay"] = backoff_ms(message.deliveries) if wait_ms < 0 else wait_ms
        self._op = context.history.invoke(SETTLE, **self._fields)

    def end(self, kind: str) -> None:
        """Record its end."""
        self._context.history.write(kind, SETTLE, op=self._op, **self._fields)


def _number_of(message: Mapping[str, Any]) -> int:
    if message.get("value_encoding", "text") != "text":
        return 0
    return number_of(message["value"].encode())


def _group_of(message: Mapping[str, Any]) -> str | None:
    return next((value for name, value, *_ in message["headers"] if name == MESSAGE_GROUP), None)


def note_acquired(
    context: Context, since_ns: int, group: str, found: Iterable[Received], **more: Any
) -> None:
    """Record what a member received, one event per topic."""
    by_topic: dict[str, list[Received]] = {}
    for one in found:
        by_topic.setdefault(one.topic, []).append(one)
    for topic, many in by_topic.items():
        recs = [[one.part, one.offset, one.value, one.key, one.deliveries] for one in many]
        context.history.write(
            OK, ACQUIRE, since=since_ns, group=group, member=many[0].member,
            ordered=True, topic=topic, recs=recs, **more,
        )  # fmt: skip


def run_http_consumer(context: Context) -> None:
    """Receive from every broker in turn."""
    web, group = Web(context), context.spec.group or ""
    receive_everywhere(context, QueueConsumer(context, group, HttpFace(group, web)))
    web.close()


def receive_everywhere(context: Context, consumer: QueueConsumer) -> None:
    """Receive from any broker until the run is over."""
    topics = list(context.spec.topics)
    has_failed = False
    while not context.over.is_set():
        try:
            consumer.work(context.rng.choice(topics), context.rng.randrange(consumer.address_count))
            has_failed = False
        except OSError as error:
            if not has_failed:  # no log line for each attempt while a broker is down
                context.note("receive failed", error=str(error)[:200])
            has_failed = True
            context.pause(NOWHERE_S)


# --- confluent-kafka -----------------------------------------------------------------------------


def run_share_consumer(context: Context) -> None:
    """confluent-kafka's share consumer, which settles each message and then commits."""
    from confluent_kafka import KafkaException, ShareConsumer

    group = context.spec.group or ""
    consumer: Any = ShareConsumer(
        {
            "bootstrap.servers": context.spec.bootstrap,
            "group.id": group,
            "client.id": context.spec.name,
            "share.acknowledgement.mode": "explicit",
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 250,
            "socket.timeout.ms": 11_000,
            "log_level": 0,
        }
    )
    consumer.subscribe(list(context.spec.topics))
    since_ns = now_ns()
    while not context.over.is_set():
        try:
            polled = [message for message in consumer.poll(0.2) if message.error() is None]
            found = [_of_library(context, message) for message in polled]
            if found:
                note_acquired(context, since_ns, group, found, loose=True)
                _settle_all(context, group, consumer, found)
        except KafkaException as error:
            context.note("poll failed", error=str(error)[:200])
            context.pause(RETRY_S)
        since_ns = now_ns()
    consumer.close()


def _of_library(context: Context, message: Any) -> Received:
    key, group = message.key(), dict(message.headers() or ()).get(MESSAGE_GROUP)
    ordered_by = order_key(
        context.spec.group or "", *(one and one.decode() for one in (group, key))
    )
    return Received(
        context.spec.name, 0, message.topic(), message.partition(), message.offset(),
        number_of(message.value()), ordered_by,
        message.delivery_count() or 1, "",
    )  # fmt: skip


def _settle_all(context: Context, group: str, consumer: Any, found: list[Received]) -> None:
    """Raises KafkaException."""
    from confluent_kafka import AcknowledgeType

    kinds = {
        "accept": AcknowledgeType.ACCEPT,
        "release": AcknowledgeType.RELEASE,
        "reject": AcknowledgeType.REJECT,
    }
    notes: dict[tuple[str, int], list[_Note]] = {}
    for one in found:
        draw = context.rng.random()
        how = "accept" if draw < 0.8 else "release" if draw < 0.95 else "reject"
        if is_poison(one.value):
            how = "release"
        consumer.acknowledge_offset(one.topic, one.part, one.offset, kinds[how])
        note = _Note(context, group, (how, -1), one)
        notes.setdefault((one.topic, one.part), []).append(note)
    try:
        done = consumer.commit_sync(10)
        for place, error in done.items():
            if error is None:
                for note in notes.pop((place.topic, place.partition), ()):
                    note.end(OK)
    finally:
        for many in notes.values():
            for note in many:
                note.end(INFO)
