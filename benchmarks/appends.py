"""What appends, fetches and acquisitions cost a broker, beside another version; and attributes.

    python -m benchmarks.appends --base ../before/src [--rounds 40] [--without-attributes]
        [--cores BEFORE AFTER]

`--cores` names folders that `scripts/build_core.py --into` filled from the two sources; without it
both brokers run as plain Python.

Both brokers run all the time, each from its own sources, and take turns on the same load: requests
made once, a fixed number under way on one connection, every answer's error code looked at. The
figures are the broker's CPU time, user and kernel, for each request; what is compared is the ratio
of neighbouring turns, since the machine's speed drifts. Records are of 100 B.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
import urllib.request
import uuid
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker

from benchmarks.broker_cpu import Load, send
from headrace.records.codec import Headers, Record, encode_batch
from headrace_bench.raw_client import fetch_all, produce_request
from headrace_verify.kafka_wire import METADATA, KafkaWire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PLAIN, UNSYNCED, ATTRIBUTES = "plain", "unsynced", "attributes"
LOADS = (
    Load("1 record a request", 1, 64, 3_000),
    Load("145 records a request (16 KiB)", 145, 16, 500),
)
FETCH_BYTES = 16 * 1024
FETCHED = Load("", 145, 4, 600)
FETCH_PASSES = 2
SHARE_HEARTBEAT, SHARE_FETCH = 76, 78
HEADERS: dict[str, Headers] = {
    "no headers": [],
    "a priority": [("headrace-priority", b"7")],
    "priority, tag, expiry": [
        ("headrace-priority", b"7"),
        ("headrace-tag", b"order"),
        ("headrace-expire-at", b"1900000000000"),
    ],
}


class Side(NamedTuple):
    """One of the brokers that are compared."""

    name: str
    broker: Broker

    def cpu_us(self) -> float:
        """CPU time so far, of all threads; known to the nanosecond, so that turns can be short."""
        assert self.broker.process is not None
        threads = Path(f"/proc/{self.broker.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1_000


def requests_of(topic: str, load: Load, headers: Headers) -> bytes:
    """One request of the load."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(at, now_ms, None, bytes(100), headers) for at in range(load.records)]
    return produce_request(topic, 0, encode_batch(records))


def produce_cost(side: Side, topic: str, load: Load, headers: Headers | None = None) -> float:
    """Microseconds of broker CPU a request."""
    before = side.cpu_us()
    send(side.broker.kafka, topic, requests_of(topic, load, headers or []), load)
    return (side.cpu_us() - before) / load.requests


def fetch_cost(side: Side) -> float:
    """Microseconds of broker CPU a fetch of one batch."""
    before = side.cpu_us()
    end = FETCHED.records * FETCHED.requests
    for _ in range(FETCH_PASSES):
        fetch_all(side.broker.kafka, "fetched", end, FETCH_BYTES)
    return (side.cpu_us() - before) / (FETCH_PASSES * FETCHED.requests)


def share_cost(side: Side, names: Iterator[int]) -> float:
    """Microseconds of broker CPU for one batch acquired by a share group, and acknowledged by the
    request that acquires the next one."""
    group, member = f"share-{next(names)}", str(uuid.uuid4())
    change = json.dumps({"set": {"share.auto.offset.reset": "earliest"}}).encode()
    url = f"http://{side.broker.http}/v1/groups/{group}/config"
    head = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, change, head, method="PATCH")).close()
    host, _, port = side.broker.kafka.rpartition(":")
    with KafkaWire((host, int(port))) as wire:
        topic = wire.call(METADATA, 12, topics=[{"name": "fetched"}]).topics[0].topic_id
        join = {"group_id": group, "member_id": member, "subscribed_topic_names": ("fetched",)}
        while not wire.call(SHARE_HEARTBEAT, 1, **join).member_epoch:
            time.sleep(0.05)  # its coordinator is loading

        epochs = itertools.count()

        def acquired(taken: list[dict[str, int]]) -> list[dict[str, int]]:
            acks = [{**offsets, "acknowledge_types": (1,)} for offsets in taken]
            part = {"partition_index": 0, "acknowledgement_batches": acks}
            asked = {"max_wait": 20_000, "min_bytes": 1, "max_bytes": FETCH_BYTES}
            records = {"max_records": FETCHED.records, "batch_size": FETCHED.records}
            session = {"group_id": group, "member_id": member, "share_session_epoch": next(epochs)}
            topics = [{"topic_id": topic, "partitions": [part]}]
            answer = wire.call(SHARE_FETCH, 1, **session, **asked, **records, topics=topics)
            assert answer.error_code == 0, answer.error_code
            found = [part for topic in answer.responses for part in topic.partitions]
            assert not any(part.error_code or part.acknowledge_error_code for part in found)
            batches = [one for part in found for one in part.acquired_records]
            return [{"first_offset": b.first_offset, "last_offset": b.last_offset} for b in batches]

        taken: list[dict[str, int]] = []
        while not taken:
            taken = acquired([])
        before = side.cpu_us()
        count = FETCHED.requests - 10  # the group's first batch is outside the measurement
        for _ in range(count):
            taken = acquired(taken)
            assert taken
        return (side.cpu_us() - before) / count


def in_turns(
    sides: Sequence[Side], rounds: int, cost: Callable[[Side], float]
) -> list[tuple[float, ...]]:
    """The cost on each side, so many times and one to warm up; who begins changes each time."""
    turns = []
    for number in range(rounds + 1):
        costs = {side.name: cost(side) for side in sides[:: 1 if number % 2 else -1]}
        turns.append(tuple(costs[side.name] for side in sides))
    return turns


def compare(name: str, columns: list[tuple[float, ...]], labels: list[str]) -> None:
    """One line: medians, and the ratio to the first column, turn by turn."""
    cells = [f"{median(column):.1f}" for column in zip(*columns, strict=True)]
    ratios = []
    for at, label in enumerate(labels[1:], start=1):
        low, middle, high = quantiles([turn[at] / turn[0] for turn in columns], n=4)
        ratios.append(f"{label} {middle:.3f} ({low:.3f}-{high:.3f})")
    print(f"| {name} | {' | '.join(cells)} | {'; '.join(ratios)} |", flush=True)


def started(name: str, source: str, core: str, folder: Path) -> Side:
    """A broker that runs from `source`, compiled or not, with its topics."""
    given = {"PYTHONPATH": source, "HEADRACE_COMPILED": core}
    own = {variable: os.environ.get(variable, "") for variable in given}
    os.environ.update(given)
    try:
        broker = Broker(folder / name).start()
    finally:
        os.environ.update(own)
    client = AdminClient({"bootstrap.servers": broker.kafka})
    topics = [NewTopic(PLAIN, 1), NewTopic("fetched", 1)]
    topics.append(NewTopic(UNSYNCED, 1, config={"flush.ms": "1000"}))
    if name == "after":
        topics.append(NewTopic(ATTRIBUTES, 1, config={"headrace.message.attributes": "true"}))
    for future in client.create_topics(topics).values():
        future.result(30)
    side = Side(name, broker)
    send(broker.kafka, "fetched", requests_of("fetched", FETCHED, []), FETCHED)
    return side


def main(base: str, rounds: int, cores: Sequence[str], *, with_attributes: bool) -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory(prefix="headrace-appends-") as folder:
        here = str(Path(__file__).parents[1] / "src")
        each = zip(("before", "after"), (base, here), cores, strict=True)
        sides = [started(*how, Path(folder)) for how in each]
        try:
            print(f"load {os.getloadavg()[0]:.1f}; us of broker CPU; ratio: median (quartiles)")
            for topic, load in product((PLAIN, UNSYNCED), LOADS):
                turns = in_turns(sides, rounds, partial(produce_cost, topic=topic, load=load))
                compare(f"produce, {topic}, {load.name}", turns[1:], ["before", "after"])
            turns = in_turns(sides, rounds, fetch_cost)
            compare("fetch, 145 records (16 KiB)", turns[1:], ["before", "after"])
            names = itertools.count()
            turns = in_turns(sides, rounds, partial(share_cost, names=names))
            compare("share group, 145 records (16 KiB)", turns[1:], ["before", "after"])
            after = sides[1]
            for load in LOADS if with_attributes else ():
                turns = [
                    (
                        produce_cost(after, PLAIN, load, []),
                        *(produce_cost(after, ATTRIBUTES, load, one) for one in HEADERS.values()),
                    )
                    for _ in range(rounds + 1)
                ]
                compare(f"attributes, {load.name}", turns[1:], ["off", *HEADERS])
        finally:
            for side in sides:
                side.broker.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="the sources of the other version")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--without-attributes", action="store_true")
    parser.add_argument("--cores", nargs=2, default=("0", "0"), help="compiled cores")
    options = parser.parse_args()
    attributes = not options.without_attributes
    main(options.base, options.rounds, options.cores, with_attributes=attributes)
