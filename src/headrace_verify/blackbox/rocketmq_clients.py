"""RocketMQ's protocol in black-box runs: a consumer's calls, and a producer of every message type.

Invariants: no library retries a call, so that each is recorded with what became of it. A call that
fails, and a status that does not say for certain that nothing was done, leave the effect unknown. A
send has no sequence, and is never repeated. Messages go to topics with one partition: no response
names the partition. `grpc` and the protocol's messages are imported late: they may be missing here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from headrace.records.partitioner import partition_of_key
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.payload import number_of
from headrace_verify.blackbox.queue_consumers import (
    QueueConsumer,
    Received,
    is_ordered,
    order_key,
    receive_everywhere,
)
from headrace_verify.blackbox.routing import RETRY_S
from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.real_broker import addresses_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TIMEOUT_S: Final = 4.0
LOCK_MS: Final = 10_000
"""The least that RocketMQ's clients may ask for."""
MS_NS: Final = 1_000_000
DELAY_MS_MAX: Final = 6_000
MESSAGE_GROUPS: Final = 12
PLAIN, ORDERED, DELAYED, HALF, LITE = "plain", "ordered", "delayed", "half", "lite"
SUBSCRIBE_TO: Final = 2
"""The action that subscribes to these lite topics and no others."""
KINDS: Final = (PLAIN, ORDERED, ORDERED, DELAYED, HALF)
COMMITTED, UNDECIDED = 0.6, 0.1
"""Fractions of the half messages; the others are rolled back."""
END_TRIES: Final = 8
MAY_PASS: Final = frozenset({40300, 40402, 42900})
"""A full disk, metadata that a starting broker lacks, too many requests: not the request's
fault."""
FINAL: Final = range(40000, 50000)


class Calls:
    """One client's calls, to any broker."""

    def __init__(self, context: Context) -> None:
        self._grpc: Any = import_module("grpc")
        self.addresses = addresses_in(context.spec.options["rocketmq"])
        self._metadata = (("x-mq-client-id", f"{context.spec.name}@{context.number}"),)
        self._open: dict[int, Any] = {}

    def ask(self, at: int, rpc: str, *, wait_ms: int = 0, **fields: Any) -> list[Any]:
        """The responses of the broker at address number `at`. Raises OSError."""
        from headrace.rocketmq import wire

        channel = self._channel(at)
        method = f"/{wire.SERVICE}/{rpc}"
        is_stream = rpc in wire.STREAMED
        make = channel.unary_stream if is_stream else channel.unary_unary
        call = make(method, None, wire.response_of(rpc).FromString)
        request = wire.request_of(rpc)(**fields).SerializeToString()
        timeout_s = TIMEOUT_S + wait_ms / 1000
        try:
            # A broker that restarts is waited for, as long as a call may take.
            found = call(request, timeout=timeout_s, metadata=self._metadata, wait_for_ready=True)
            return list(found) if is_stream else [found]
        except self._grpc.RpcError as error:
            raise ConnectionError(f"{rpc} failed: {error.code()}") from error

    def _channel(self, at: int) -> Any:
        if at not in self._open:
            host, port = self.addresses[at]
            options = [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 250),
                ("grpc.enable_http_proxy", 0),
            ]
            self._open[at] = self._grpc.insecure_channel(f"{host}:{port}", options)
        return self._open[at]

    def close(self) -> None:
        """Close all connections."""
        for channel in self._open.values():
            channel.close()
        self._open.clear()


def result_of(code: int) -> bool | None:
    """True: done; False: certainly not done; None: unknown."""
    if code == 20000:
        return True
    return False if code in FINAL and code not in MAY_PASS else None


# --- consumers -----------------------------------------------------------------------------------


class RocketFace:
    """See QueueFace."""

    locks_ms = (LOCK_MS,)

    def __init__(self, context: Context, group: str, lite_topics: Sequence[str] = ()) -> None:
        """`lite_topics`: which ones to receive, of a group that consumes lite topics."""
        self._calls = Calls(context)
        self.address_count = len(self._calls.addresses)
        self._name = group
        self._group = {"name": group}
        self._lite_topics = lite_topics
        # Clients of groups with order get several messages of one message group at a time.
        is_together = bool(lite_topics) or is_ordered(group)
        self.more: dict[str, Any] = {"together": True} if is_together else {}

    def way(self, how: str, wait_ms: int) -> tuple[str, int]:
        """A message is given back by a shorter lock."""
        return ("renew", max(wait_ms, 1)) if how == "release" else (how, wait_ms)

    def receive(
        self, at: int, topic: str, count: int, wait_ms: int, lock_ms: int
    ) -> list[Received]:
        """See QueueFace."""
        from headrace.rocketmq import wire

        if self._lite_topics:
            self._subscribe(at, topic)
        asked: dict[str, Any] = {
            "group": self._group,
            "message_queue": {"topic": {"name": topic}},
            "batch_size": count,
            "invisible_duration": wire_ms(lock_ms),
            "long_polling_timeout": wire_ms(wait_ms),
        }
        responses = self._calls.ask(at, "ReceiveMessage", wait_ms=wait_ms, **asked)
        status = next((one.status for one in responses if one.HasField("status")), None)
        if status is None or status.code not in {20000, 40401}:
            raise ConnectionError(f"receive failed: {status}")
        found = []
        for one in responses:
            if not one.HasField("message"):
                continue
            system = one.message.system_properties
            key = system.lite_topic or order_key(
                self._name, system.message_group, next(iter(system.keys), None)
            )
            is_text = system.body_encoding == wire.IDENTITY
            found.append(
                Received(
                    "", at, topic, system.queue_id, system.queue_offset,
                    number_of(one.message.body) if is_text else 0, key,
                    system.delivery_attempt, system.receipt_handle,
                )
            )  # fmt: skip
        return found

    def _subscribe(self, at: int, topic: str) -> None:
        asked: dict[str, Any] = {
            "group": self._group,
            "topic": {"name": topic},
            "action": SUBSCRIBE_TO,
            "lite_topic_set": self._lite_topics,
        }
        (response,) = self._calls.ask(at, "SyncLiteSubscription", **asked)
        if not result_of(response.status.code):
            raise ConnectionError(f"subscribing failed: {response.status}")

    def settle(
        self, at: int, topic: str, ways: Mapping[tuple[str, int], Sequence[Received]]
    ) -> dict[str, bool]:
        """See QueueFace."""
        results: dict[str, bool] = {}
        named = {"group": self._group, "topic": {"name": topic}}
        for (how, wait_ms), many in ways.items():
            if how == "accept" and many:
                self._acknowledge(at, named, many, results)
            for one in many if how != "accept" else ():
                asked: dict[str, Any] = named | {"receipt_handle": one.receipt}
                rpc = "ForwardMessageToDeadLetterQueue"
                if how == "renew":
                    rpc = "ChangeInvisibleDuration"
                    asked["invisible_duration"] = wire_ms(wait_ms)
                try:
                    (response,) = self._calls.ask(at, rpc, **asked)
                except OSError:
                    continue  # unknown
                result = result_of(response.status.code)
                if result is not None:
                    results[one.receipt] = result
        return results

    def _acknowledge(
        self, at: int, named: dict[str, Any], many: Sequence[Received], results: dict[str, bool]
    ) -> None:
        entries = [{"receipt_handle": one.receipt} for one in many]
        try:
            (response,) = self._calls.ask(at, "AckMessage", **named, entries=entries)
        except OSError:
            return  # unknown
        for entry in response.entries:
            result = result_of(entry.status.code)
            if result is not None:
                results[entry.receipt_handle] = result

    def close(self) -> None:
        """See QueueFace."""
        self._calls.close()


def wire_ms(ms: int) -> dict[str, int]:
    """The fields of a Timestamp or Duration."""
    return {"seconds": ms // 1_000, "nanos": ms % 1_000 * MS_NS}


def run_rocketmq_consumer(context: Context) -> None:
    """Receive from every broker in turn."""
    group = context.spec.group or ""
    face = RocketFace(context, group)
    receive_everywhere(context, QueueConsumer(context, group, face))
    face.close()


# --- a producer ----------------------------------------------------------------------------------


class Producer:
    """Sends one message at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls = Calls(context)
        self._clock = SystemClock()
        self._count = 0

    def run(self, send: Callable[[], str | None]) -> None:
        """Call `send` at the client's rate until the run is over, or it returns why it cannot."""
        context = self._context
        while not context.over.is_set():
            refused = send()
            if refused is not None:
                context.gave_up(refused)
                break
            context.pause(1 / max(1, context.spec.rate_per_s))
        self._calls.close()

    def send_lite(self, topic: str, partitions: int, lite_topic: str) -> str | None:
        """As `send`, to a lite topic, which lies in the partition of its name."""
        return self.send(LITE, topic, partition_of_key(lite_topic.encode(), partitions), lite_topic)

    def send(self, kind: str, topic: str, part: int, lite_topic: str = "") -> str | None:
        """Send one message and decide it; why it was refused although it is valid, if it was."""
        context = self._context
        fields, due = self._drawn(kind)
        if lite_topic:
            fields["lite_topic"] = lite_topic
        value, data = context.begin_send(topic, part, **due)
        message = {"topic": {"name": topic}, "body": data, "system_properties": fields}
        try:
            (response,) = self._calls.ask(self._any(), "SendMessage", messages=[message])
        except OSError as error:
            context.end_send(INFO, topic, part, value, error=str(error))
            return None
        code = response.status.code
        result = result_of(code)
        if not result:
            context.end_send(INFO, topic, part, value, error=f"code {code}")
            return None if result is None else f"a valid message was refused: {response.status}"
        (entry,) = response.entries
        if kind == HALF:
            outcome, why = self._decide(topic, entry.transaction_id)
            more: dict[str, Any] = {"offset": -1} if outcome == OK else {"error": why}
            context.end_send(outcome, topic, part, value, **more)
        else:
            offset = -1 if kind == DELAYED else entry.offset
            context.end_send(OK, topic, part, value, offset=offset)
        return None

    def _drawn(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """(system properties, what the history says of the times)."""
        from headrace.rocketmq import wire

        context = self._context
        self._count += 1
        fields: dict[str, Any] = {
            "message_id": f"01{context.number << 32 | self._count:032X}",
            "message_type": wire.NORMAL,
        }
        if kind == ORDERED:
            group = f"g{context.rng.randrange(MESSAGE_GROUPS)}"
            fields |= {"message_type": wire.FIFO, "message_group": group}
        elif kind == HALF:
            fields["message_type"] = wire.TRANSACTION
        elif kind == LITE:
            fields["message_type"] = wire.LITE
        elif kind == DELAYED:
            delay_ms = int(DELAY_MS_MAX * context.rng.random() ** 2) + 1
            at_ns, at_ms = now_ns(), self._clock.now_ms()
            due = wire_ms(at_ms + delay_ms)
            fields |= {"message_type": wire.DELAY, "delivery_timestamp": due}
            # The wall clock was read after `at_ns`, and has millisecond resolution.
            return fields, {"due": at_ns + (delay_ms - 1) * MS_NS}
        return fields, {}

    def _decide(self, topic: str, transaction_id: str) -> tuple[str, str]:
        """Commit a half message, roll it back, or neither: (what is certain, why not more)."""
        from headrace.rocketmq import wire

        context = self._context
        draw = context.rng.random()
        if draw < UNDECIDED:
            return INFO, "not decided"
        is_commit = draw < UNDECIDED + COMMITTED
        asked: dict[str, Any] = {
            "topic": {"name": topic},
            "transaction_id": transaction_id,
            "resolution": wire.COMMIT if is_commit else wire.ROLLBACK,
        }
        for _ in range(END_TRIES):
            try:
                (response,) = self._calls.ask(self._any(), "EndTransaction", **asked)
            except OSError:
                context.pause(RETRY_S)
                continue
            result = result_of(response.status.code)
            if result:
                return (OK, "") if is_commit else (FAIL, "rolled back")
            if result is False:  # too late: the broker has given it up
                return INFO, f"code {response.status.code}"
            context.pause(RETRY_S)
        return INFO, "the decision was not answered"

    def _any(self) -> int:
        return self._context.rng.randrange(len(self._calls.addresses))


def run_rocketmq_producer(context: Context) -> None:
    """Send messages of every type to any broker."""
    producer, rng = Producer(context), context.rng
    producer.run(lambda: producer.send(rng.choice(KINDS), *rng.choice(context.places)))
