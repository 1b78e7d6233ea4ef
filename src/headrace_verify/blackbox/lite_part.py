"""RocketMQ's lite topics in black-box runs: many small queues in one topic, of which each client
receives those that it names.

Invariants: every client names all of them, in each receive anew, because an owner that takes over
knows no subscriptions. A lite topic lies in the partition of its name, and is judged as a key whose
messages come together. The checkers and the end of a run are those of queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace_verify.blackbox import queue_part
from headrace_verify.blackbox.parts import Part, Role
from headrace_verify.blackbox.queue_consumers import QueueConsumer, receive_everywhere
from headrace_verify.blackbox.rocketmq_clients import LOCK_MS, Producer, RocketFace
from headrace_verify.workloads import LITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.blackbox.context import Context
    from headrace_verify.blackbox.parts import Clients

TOPIC: Final = "lite-0"
TOPICS: Final = {TOPIC: 2}
DEAD_TOPIC: Final = "lite-dead"
LITE_TOPICS: Final = tuple(f"session-{number}" for number in range(16))
LOCKS: Final = 6
"""That may have to end one after another before a lite topic has been consumed."""
GROUPS: Final = {
    LITE: queue_part.GROUPS["shared"]
    | {"errors.deadletterqueue.topic.name": DEAD_TOPIC, "headrace.share.lite": "true"}
}
READING: Final = queue_part.Reading(GROUPS, TOPICS, DEAD_TOPIC)


def prepare(context: Context) -> None:
    """Configure the topic and the group. Raises OSError."""
    queue_part.configure_all(context, {TOPIC: {"headrace.message.type": "lite"}}, GROUPS)


def run_lite_producer(context: Context) -> None:
    """Send to any lite topic, by any broker."""
    producer = Producer(context)
    producer.run(lambda: producer.send_lite(TOPIC, TOPICS[TOPIC], context.rng.choice(LITE_TOPICS)))


def run_lite_consumer(context: Context) -> None:
    """Receive by any broker."""
    face = RocketFace(context, LITE, LITE_TOPICS)
    receive_everywhere(context, QueueConsumer(context, LITE, face))
    face.close()


def settle(crew: Clients, context: Context, within_s: float) -> Iterator[str]:
    """See Part. What a client abandons holds up its lite topic until the lock ends, which may
    happen to a message several times."""
    yield from queue_part.settle_all(READING, crew, context, within_s + LOCKS * LOCK_MS / 1_000)


def read_back(context: Context) -> Iterator[str]:
    """See Part."""
    face = RocketFace(context, LITE, LITE_TOPICS)
    yield from queue_part.read_back_all(READING, context, face)
    face.close()


def _role(name: str, kind: str, rate_per_s: int = 0, *, is_quick: bool = True) -> Role:
    group = None if rate_per_s else LITE
    return Role(name, kind, rate_per_s, group, is_quick=is_quick, part=LITE, topics=TOPICS)


PART: Final = Part(
    LITE,
    (
        _role("rocketmq-lite-sender", "rocketmq-lite-producer", 30),
        _role("rocketmq-lite-a", "rocketmq-lite-consumer"),
        _role("rocketmq-lite-b", "rocketmq-lite-consumer"),
        _role("rocketmq-lite-c", "rocketmq-lite-consumer", is_quick=False),
    ),
    TOPICS | {DEAD_TOPIC: queue_part.DEAD_PARTITIONS},
    ("acquire ok", "settle ok", "drained ok"),
    prepare,
    settle,
    read_back,
)
