"""RocketMQ's official client for Python, told what to do by `languages/rocketmq.py`.

Invariants: runs in an environment of its own, so it imports nothing of ours. A command is a line of
words, a response a line of JSON; a call of the library is made once, whatever becomes of it. The
program exits when its standard input is closed.

    send KIND TOPIC BASE64 DETAIL   sent: offset; and `end`, if the decision was not answered
    receive TOPIC COUNT SECONDS     received: [[receipt, message group, key, attempt, BASE64], ...]
    ack RECEIPT                     settled
    renew RECEIPT SECONDS           settled

DETAIL is the message group, the second at which a message is due, or what becomes of a half
message: commit, rollback, check-commit, check-rollback; the latter two when the broker asks. What
fails is answered by `failed`, with the code if there is one.
"""

from __future__ import annotations

import base64
import json
import logging.config
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _ignore(config: object) -> None:
    """Configure nothing: the library would write files of its own."""


logging.config.dictConfig = _ignore

from rocketmq import (  # noqa: E402
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINT, GROUP = sys.argv[1], sys.argv[2]
CONFIG = ClientConfiguration(ENDPOINT, Credentials())
AWAIT_S = 1
HELD_MAX = 5_000


Answer = dict[str, Any]


class Decisions(TransactionChecker):  # type: ignore[misc] # unknown to mypy
    """What the producer decides, also when it is asked."""

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}

    def check(self, message: Any) -> int:
        """Commit, roll back, or leave open what another one has sent."""
        unknown: int = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return self.known.get(message.body, unknown)


class Sending:
    """A producer of each topic: it is asked about half messages of its topics."""

    def __init__(self) -> None:
        self._decisions = Decisions()
        self._producers: dict[str, Any] = {}

    def _producer(self, topic: str) -> Any:
        if topic not in self._producers:
            producer = Producer(CONFIG, (topic,), self._decisions)
            producer.startup()
            self._producers[topic] = producer
        return self._producers[topic]

    def send(self, kind: str, topic: str, text: str, detail: str = "") -> Answer:
        """Send a message."""
        producer = self._producer(topic)
        message = Message()
        message.topic, message.body = topic, base64.b64decode(text)
        if kind == "half":
            return self._send_half(producer, message, detail)
        if kind == "ordered":
            message.message_group = detail
        elif kind == "delayed":
            message.delivery_timestamp = int(detail)
        return {"what": "sent", "offset": producer.send(message).offset}

    def _send_half(self, producer: Any, message: Any, detail: str) -> Answer:
        resolution = "COMMIT" if detail.endswith("commit") else "ROLLBACK"
        self._decisions.known[message.body] = getattr(TransactionResolution, resolution)
        begun = producer.begin_transaction()
        producer.send(message, begun)
        answer: Answer = {"what": "sent", "offset": -1}
        if detail in {"commit", "rollback"}:
            try:
                getattr(begun, detail)()
            except Exception as error:  # noqa: BLE001 - whatever the library raises
                answer |= {"end": "failed", "error": repr(error)}
        return answer


class Receiving:
    """A consumer of each topic."""

    def __init__(self) -> None:
        self._consumers: dict[str, Any] = {}
        self._held: dict[str, tuple[Any, Any]] = {}
        """Receipt -> (consumer, message)."""

    def receive(self, topic: str, count: str, seconds: str) -> Answer:
        """Receive messages, locked for so long."""
        consumer = self._consumers.get(topic)
        if consumer is None:
            consumer = SimpleConsumer(CONFIG, GROUP, {topic: FilterExpression()})
            consumer.startup()
            consumer.await_duration = AWAIT_S
            self._consumers[topic] = consumer
        found = []
        for one in consumer.receive(int(count), int(seconds)) or []:
            receipt = one.receipt_handle
            self._held[receipt] = consumer, one
            key = next(iter(one.keys or ()), None)
            body = base64.b64encode(one.body).decode()
            found.append([receipt, one.message_group, key, one.delivery_attempt, body])
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]
        return {"what": "received", "messages": found}

    def ack(self, receipt: str) -> Answer:
        """Acknowledge a message."""
        consumer, message = self._held[receipt]
        consumer.ack(message)
        del self._held[receipt]
        return {"what": "settled"}

    def renew(self, receipt: str, seconds: str) -> Answer:
        """Have it delivered again after so long."""
        consumer, message = self._held[receipt]
        consumer.change_invisible_duration(message, int(seconds))
        return {"what": "settled"}


def main() -> None:
    """Answer commands until there are no more."""
    sending, receiving = Sending(), Receiving()
    calls: dict[str, Callable[..., Answer]] = {
        "send": sending.send,
        "receive": receiving.receive,
        "ack": receiving.ack,
        "renew": receiving.renew,
    }
    for line in sys.stdin:
        name, *words = line.split()
        try:
            answer = calls[name](*words)
        except Exception as error:  # noqa: BLE001 - whatever the library raises
            code = getattr(error, "code", None)
            code = int(code) if isinstance(code, int) else 0
            answer = {"what": "failed", "code": code, "error": repr(error)}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the library's threads would go on for a while


main()
