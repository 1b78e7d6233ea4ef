"""End-to-end latency at a steady rate, with librdkafka: one process sends, one receives.

Invariants: both processes read the same monotonic clock. A message's time starts when it was due if
the broker held up the sender (which corrects coordinated omission), and when it was sent if the
sender merely woke up late (the operating system's timer is not the broker's fault). `python -m
headrace_bench.latency` is the sending process.
"""

from __future__ import annotations

import argparse
import ctypes
import struct
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace_bench.processes import SystemFailed
from headrace_bench.tools import check_server, tool

if TYPE_CHECKING:
    import subprocess

PR_SET_TIMERSLACK = 29
WARMUP_S = 1.0  # excluded from the figures: connections open, caches fill
VALUE_BYTES = 100
LATE_MAX_S = 20.0


class Latencies(NamedTuple):
    """Milliseconds, from due to received."""

    messages: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    rate_per_s: float


def precise_sleep() -> None:
    """Ask the kernel to wake this process on time, not up to 50 us later."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def send(bootstrap: str, topic: str, rate_per_s: int, seconds: float) -> None:
    """Send at a steady rate, each message when it is due."""
    precise_sleep()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0}
        | {"socket.nagle.disable": True, "log_level": 0, "delivery.report.only.error": True}
    )
    failed: list[str] = []

    def report(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer.list_topics(topic, timeout=10)
    interval_ns = 1_000_000_000 // rate_per_s
    padding = b"x" * (VALUE_BYTES - 8)
    clock, pack = time.perf_counter_ns, struct.pack
    due_ns = clock() + 200_000_000
    free_ns = due_ns
    for _ in range(int(rate_per_s * seconds)):
        wait_ns = due_ns - clock()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        begin_ns = clock()
        # The previous call (a full queue) held it up: its time starts when it was due.
        start_ns = due_ns if free_ns > due_ns else begin_ns
        producer.produce(topic, pack(">q", start_ns) + padding, partition=0, on_delivery=report)
        producer.poll(0)
        free_ns = clock()
        due_ns += interval_ns
    if producer.flush(LATE_MAX_S) or failed:
        raise SystemExit(f"not delivered: {failed[:1]}")


def measure(bootstrap: str, topic: str, rate_per_s: int, seconds: float) -> Latencies:
    """Start the sender, receive everything, and summarise."""
    taken_ns, begin_ns, end_ns = collect(bootstrap, topic, rate_per_s, seconds)
    taken_ns.sort()
    count = len(taken_ns)

    def at(share: float) -> float:
        return taken_ns[min(count - 1, int(count * share))] / 1e6

    rate = count / max((end_ns - begin_ns) / 1e9, 1e-9)
    return Latencies(count, at(0.5), at(0.99), at(0.999), taken_ns[-1] / 1e6, rate)


def collect(
    bootstrap: str, topic: str, rate_per_s: int, seconds: float
) -> tuple[list[int], int, int]:
    """Each message's nanoseconds, and the times of the first counted message and the last one."""
    precise_sleep()
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-latency", "log_level": 0}
        | {"enable.auto.commit": False, "socket.nagle.disable": True}
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(0.5)
    total = int(rate_per_s * (seconds + WARMUP_S))
    skip = int(rate_per_s * WARMUP_S)
    command = [sys.executable, "-m", "headrace_bench.latency", bootstrap, topic]
    command += [str(rate_per_s), str(seconds + WARMUP_S)]
    try:
        with tool(command) as sender:
            taken_ns, begin_ns, end_ns = _receive(consumer, sender, total, skip)
            _, output = sender.communicate(timeout=LATE_MAX_S)
    finally:
        consumer.close()
    if sender.returncode != 0:
        raise SystemFailed(output.decode(errors="replace")[-1000:])
    return taken_ns, begin_ns, end_ns


def _receive(
    consumer: Consumer, sender: subprocess.Popen[bytes], total: int, skip: int
) -> tuple[list[int], int, int]:
    taken_ns: list[int] = []
    clock, unpack = time.perf_counter_ns, struct.Struct(">q").unpack_from
    seen, begin_ns, last_ns = 0, clock(), clock()
    while seen < total:
        message = consumer.poll(1.0)
        now_ns = clock()
        if message is None:
            check_server()
            if now_ns - last_ns > LATE_MAX_S * 1e9 or sender.poll():
                output = sender.communicate()[1][-500:] if sender.poll() else b""
                raise SystemFailed(
                    f"{total - seen} of {total} messages did not arrive; {output.decode()}"
                )
            continue
        if message.error() is not None:
            raise KafkaException(message.error())
        last_ns = now_ns
        if seen == skip:
            begin_ns = now_ns
        if seen >= skip:
            taken_ns.append(now_ns - unpack(message.value() or b"")[0])
        seen += 1
    return taken_ns, begin_ns, last_ns


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("rate_per_s", type=int)
    parser.add_argument("seconds", type=float)
    asked = parser.parse_args()
    send(asked.bootstrap, asked.topic, asked.rate_per_s, asked.seconds)


if __name__ == "__main__":
    _main()
