"""Producers of queues: messages with ids, keys and priorities, delayed, expiring, cancelled.

Invariants: retries use the same sequences: of an idempotent producer over Kafka, or of a named one
over HTTP. A delayed message is recorded with the time before which it must not be visible (`due`),
an expiring one with the time after which it must not be delivered (`until`). A confirmed
cancellation is recorded as a failed send, one without a response as in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.routing import RETRY_S, Connection, Place
from headrace_verify.blackbox.web import OK_STATUS, UNAVAILABLE, Web
from headrace_verify.history import FAIL, INFO, OK, SEND
from headrace_verify.kafka_wire import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = 24
DELAY_MS_MAX = 6_000
PLAIN, DELAYED, DUE_AT, EXPIRING = "plain", "delayed", "due-at", "expiring"
KINDS = (PLAIN,) * 6 + (DELAYED,) * 2 + (DUE_AT, EXPIRING)
CANCELLED = 0.15
"""The fraction of delayed messages."""
MS_NS = 1_000_000
TOO_MANY_REQUESTS = 429


class Message(NamedTuple):
    """A message to be sent."""

    value: int
    data: bytes
    key: str
    id: str
    headers: list[tuple[str, str]]


class _Messages:
    """Draws messages, and records their invocation."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock = SystemClock()
        self._count = 0

    def new(self, kind: str, topic: str, part: int) -> Message:
        """Draw a message to be sent."""
        context = self._context
        self._count += 1
        name = f"{context.spec.name}-{self._count}"
        headers = [("headrace-message-id", name)]
        fields: dict[str, Any] = {}
        delay_ms = int(DELAY_MS_MAX * context.rng.random() ** 2) + 1
        at_ns, at_ms = now_ns(), self._clock.now_ms()
        if kind == DELAYED:
            headers.append(("headrace-delay", str(delay_ms)))
            fields["due"] = at_ns + delay_ms * MS_NS
        elif kind == DUE_AT:
            headers.append(("headrace-deliver-at", str(at_ms + delay_ms)))
            # The wall clock was read after `at_ns`, and has millisecond resolution.
            fields["due"] = at_ns + (delay_ms - 1) * MS_NS
        elif kind == EXPIRING:
            headers.append(("headrace-expire-at", str(at_ms + delay_ms)))
            fields |= {"expires": True, "until": now_ns() + delay_ms * MS_NS}
        elif context.rng.random() < 0.3:
            headers.append(("headrace-priority", str(context.rng.randrange(10))))
        value, data = context.begin_send(topic, part, **fields)
        return Message(value, data, f"k{context.rng.randrange(KEYS)}", name, headers)

    def end(
        self, kind: str, topic: str, part: int, messages: Sequence[Message], offset: int | None
    ) -> None:
        """Record that they were stored from `offset` on, or at an unknown offset (-1), or in
        doubt."""
        for at, message in enumerate(messages):
            if offset is None:
                self._context.end_send(INFO, topic, part, message.value, error="not answered")
                continue
            is_placed = offset >= 0 and kind in {PLAIN, EXPIRING}
            place = offset + at if is_placed else -1
            self._context.end_send(OK, topic, part, message.value, offset=place)


def _count_of(context: Context, kind: str) -> int:
    return 1 if kind in {DELAYED, DUE_AT} else context.rng.choice((1, 1, 1, 4))


def run_queue_producer(context: Context) -> None:
    """Over Kafka, with a hand-written idempotent producer."""
    connection, web = Connection(context), Web(context)
    messages = _Messages(context)
    producer = connection.until_answered(lambda wire: wire.new_producer())
    sequences = dict.fromkeys(context.places, 0)
    while not context.over.is_set():
        kind = context.rng.choice(KINDS)
        topic, part = place = context.rng.choice(context.places)
        sent = [messages.new(kind, topic, part) for _ in range(_count_of(context, kind))]
        batch = _encoded(sent, producer, sequences[place])
        try:
            offset = connection.until_answered(
                lambda wire, place=place, batch=batch: wire.produce(*place, batch),  # type: ignore[misc]
                Place(topic, part),
            )
        except Refused as error:
            messages.end(kind, topic, part, sent, None)
            context.gave_up(f"a valid batch was rejected: {error}")
            break
        messages.end(kind, topic, part, sent, offset)
        if offset is None:
            break
        sequences[place] += len(sent)
        if kind in {DELAYED, DUE_AT} and context.rng.random() < CANCELLED:
            _cancel(context, web, topic, part, sent[0])
        context.pause(len(sent) / max(1, context.spec.rate_per_s))
    connection.drop()
    web.close()


def _encoded(sent: Sequence[Message], producer: tuple[int, int], first: int) -> bytes:
    now_ms = SystemClock().now_ms()
    records = [
        Record(
            0,
            now_ms,
            one.key.encode(),
            one.data,
            [(name, text.encode()) for name, text in one.headers],
        )
        for one in sent
    ]
    return encode_batch(
        records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=first
    )


def _cancel(context: Context, web: Web, topic: str, part: int, message: Message) -> None:
    """Ask every broker: the partition's owner has it, if it is not due yet."""
    fields = {"topic": topic, "part": part, "value": message.value}
    asked = {"message_ids": [message.id]}
    is_sure = True
    for at in range(len(web.addresses)):
        try:
            answer = web.post(at, f"/v1/topics/{quote(topic)}/delayed/cancel", asked)
        except OSError:
            is_sure = False
            continue
        if answer.status != OK_STATUS:
            is_sure = False
        elif any(one["cancelled"] for one in answer.body["results"]):
            context.history.write(FAIL, SEND, **fields, error="cancelled")
            return
    if not is_sure:
        context.history.write(INFO, SEND, **fields, error="perhaps cancelled")


def run_http_producer(context: Context) -> None:
    """Over HTTP, with a named sequence in each message, so that a retry is stored once."""
    web = Web(context)
    messages = _Messages(context)
    numbers = dict.fromkeys(context.places, 0)
    at = context.number
    while not context.over.is_set():
        topic, part = place = context.rng.choice(context.places)
        kind = context.rng.choice((PLAIN, PLAIN, EXPIRING))
        sent = [messages.new(kind, topic, part) for _ in range(_count_of(context, kind))]
        records = []
        for one in sent:
            numbers[place] += 1
            named = [("headrace-producer", f"{context.spec.name}-{context.number}")]
            named.append(("headrace-sequence", str(numbers[place])))
            records.append(
                {
                    "key": one.key,
                    "value": one.data.decode(),
                    "partition": part,
                    "headers": [list(header) for header in (*one.headers, *named)],
                }
            )
        path, body = f"/v1/topics/{quote(topic)}/records", {"records": records}
        while True:
            found = _stored(web, at % len(web.addresses), path, body)
            if isinstance(found, str):
                messages.end(kind, topic, part, sent, None)
                context.gave_up(found)
                return
            if found is not None or context.over.is_set():
                break
            at += 1  # another broker may have become the owner
            context.pause(RETRY_S)
        messages.end(kind, topic, part, sent, found)
        context.pause(len(sent) / max(1, context.spec.rate_per_s))
    web.close()


def _stored(web: Web, at: int, path: str, body: dict[str, Any]) -> int | str | None:
    """Return the first record's offset, -1 if unknown; None: retry.

    A string: why the request was rejected, although it is valid.
    """
    try:
        answer = web.post(at, path, body)
    except OSError:
        return None
    if answer.status != OK_STATUS:
        may_pass = answer.status in {UNAVAILABLE, TOO_MANY_REQUESTS}
        return None if may_pass else f"a valid request was rejected: {answer}"
    results = answer.body["results"]
    for one in results:
        if not one["ok"]:
            error = one["error"]
            return None if error["retriable"] else f"a valid record was rejected: {error}"
    offsets = [one["offset"] for one in results]
    # Records that a retry finds stored have no offset, and other records may lie between them.
    is_run = offsets == list(range(offsets[0] or 0, (offsets[0] or 0) + len(offsets)))
    return int(offsets[0]) if is_run and None not in offsets else -1
