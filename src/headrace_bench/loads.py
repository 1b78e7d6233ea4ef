"""The loads of every system: data, no code that runs anything.

Invariants: a load defines what is done, not how: a system's module selects the tool. Equal
guarantees are compared: `synced` (on disk before the acknowledgement) and `unsynced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_bench.tools import Window
from headrace_bench.workloads import SYNCED, UNSYNCED

Acknowledge = Literal["each", "hundred", "confirmed", "batch"]
"""`each`: every message separately, without waiting; `hundred`: a hundred at a time; `confirmed`:
every message separately, the next one after the server's confirmation; `batch`: what a receive
returned at a time."""

AS_IT_COMES = {
    "headrace": SYNCED,
    "kafka": UNSYNCED,
    "nats": UNSYNCED,
    "rabbitmq": SYNCED,
    "rocketmq": UNSYNCED,
}
"""The side of each system that is a queue: durability of writes does not apply to receiving and
acknowledging, and only Headrace and RabbitMQ sync acknowledgements."""


@dataclass(frozen=True, slots=True)
class Load:
    """One row of runs, the same for each side."""

    name: str
    title: str
    kind: Literal["produce", "consume", "latency", "queue", "delayed", "clients", "lite"]
    record_bytes: int
    window: Window
    """The warm-up that a run excludes, and the length of its window."""
    rate_per_s: int = 0
    policies: tuple[str, ...] = (SYNCED, UNSYNCED)
    every: int = 1
    """Run in every nth round, starting with the first."""
    acknowledge: Acknowledge = "each"
    """Of a queue: how received messages are acknowledged."""
    count: int = 0
    """How many messages are delayed, clients are connected, or lite topics there are."""

    @property
    def has_times(self) -> bool:
        """Whether its figures are percentiles of times."""
        return self.kind in ("latency", "delayed")

    def is_for(self, system: str, policy: str) -> bool:
        """Whether a side supports it."""
        if self.kind == "queue":
            return AS_IT_COMES.get(system) == policy
        return policy in self.policies

    def is_in(self, number: int) -> bool:
        """Whether round `number` (from 1) includes it."""
        return (number - 1) % self.every == 0


LOADS: tuple[Load, ...] = (
    # The first after a server's start: it warms up longer.
    Load("beside-produce-100", "Produce 100 B records", "produce", 100, Window(5.0, 10.0), every=2),
    Load("beside-produce-1024", "Produce 1 KiB records", "produce", 1024, Window(4.0, 10.0)),
    # Reads what the previous load has written, from the beginning.
    Load(
        "beside-consume-1024",
        "Consume 1 KiB records",
        "consume",
        1024,
        Window(1.0, 10.0),
        policies=(UNSYNCED,),
    ),
    Load(
        "beside-latency-1000",
        "End to end at 1,000 messages/s of 100 B",
        "latency",
        100,
        Window(1.0, 5.0),
        rate_per_s=1000,
    ),
)


def _queue(name: str, title: str, acknowledge: Acknowledge, record_bytes: int = 100) -> Load:
    window = Window(1.0, 4.0)
    return Load(name, title, "queue", record_bytes, window, acknowledge=acknowledge)


QUEUE_LOADS: tuple[Load, ...] = (
    _queue("beside-queue-each", "Receive 100 B messages, acknowledge each", "each"),
    _queue("beside-queue-100", "Receive 100 B messages, acknowledge 100 at a time", "hundred"),
    _queue(
        "beside-queue-confirmed",
        "Receive 100 B messages, acknowledge each and wait until it is confirmed",
        "confirmed",
    ),
)
"""One consumer empties what was written before."""
ROCKETMQ_LOADS: tuple[Load, ...] = (
    Load("rocketmq-send", "Send 128 B messages, 64 in flight", "produce", 128, Window(4.0, 8.0)),
    _queue("rocketmq-receive", "Receive messages, acknowledge 32 at a time", "batch", 128),
    _queue("rocketmq-receive-each", "Receive messages, acknowledge each with a call", "each", 128),
    Load(
        "rocketmq-latency",
        "End to end at 1,000 messages/s of 100 B",
        "latency",
        100,
        Window(1.0, 8.0),
        rate_per_s=1000,
    ),
    Load(
        "rocketmq-delayed",
        "1,000 messages due at one instant: lateness",
        "delayed",
        128,
        Window(0.0, 8.0),
        count=1000,
    ),
    Load(
        "rocketmq-clients",
        "100 connected clients, nothing sent",
        "clients",
        0,
        Window(0.0, 20.0),
        count=100,
    ),
    # The last one: RocketMQ is started in another way for it.
    Load(
        "rocketmq-lite",
        "Send 128 B messages to 1,000 lite topics, receive and acknowledge them",
        "lite",
        128,
        Window(4.0, 8.0),
        count=1000,
    ),
)
"""RocketMQ's protocol alone, on the systems that speak it."""
FILLS: dict[Acknowledge, Window] = {
    "each": Window(0.0, 18.0, 4_000_000),
    "hundred": Window(0.0, 18.0, 4_000_000),
    "confirmed": Window(0.0, 4.0, 200_000),
    "batch": Window(0.0, 18.0, 400_000),
}
"""The limits for filling a queue: time, and number of messages."""

# figure -> (heading, unit, digits)
FIGURES: dict[str, tuple[str, str, int]] = {
    "records_per_s": ("records/s", "", 0),
    "mb_per_s": ("MB/s", "", 1),
    "cpu_s_per_million": ("CPU s per million records", "", 2),
    "cpu_s_per_gb": ("CPU s per GB", "", 2),
    "written_per_byte": ("bytes written per byte", "", 2),
    "rss_mb": ("memory, MB", "", 0),
}
CLIENT_FIGURES: dict[str, tuple[str, str, int]] = {
    "cpu_percent": ("CPU, % of a core", "", 2),
    "rss_mb": ("memory, MB", "", 0),
}
SHARES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
