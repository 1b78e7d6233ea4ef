"""Figures of queues that have nothing beside them: delayed records, journal, memory, restart.

Run: python -m benchmarks.queues delayed|journal|groups|restart [--records N] [--rounds N]
Starts a broker of its own in a temporary folder; prints one JSON line a figure. Share groups and
queues over HTTP are measured by `headrace bench`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker

from benchmarks.broker_cpu import Load, send
from headrace.coordination.shares import state_records
from headrace.coordination.shares.commands import (
    ACCEPT,
    AcquireCommand,
    OpenShareGroupCommand,
    SettleCommand,
    Settlement,
)
from headrace.coordination.shares.config import ShareConfig
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.coordination.shares.state_records import ShareGroupChanged
from headrace.records.codec import Record, encode_batch
from headrace_bench.peers import Headrace, cpu_s, rss_bytes
from headrace_bench.raw_client import produce_request

ATTRIBUTES = "headrace.message.attributes"
DUE_AT_ONCE = 10_000
RECORDS_AT_ONCE = 100_000
GROUPS = 1_000


def tell(**figures: Any) -> None:
    """Print one figure."""
    print(json.dumps(figures), flush=True)


def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    """Create a topic and wait for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, partitions, 1, config={k.replace("_", "."): v for k, v in config.items()})
    for future in admin.create_topics([new]).values():
        future.result(30)


def delayed(folder: Path, records: int, rounds: int) -> None:
    """How late records are that are due over one second, seen by a consumer."""
    broker = Headrace(folder / "headrace")
    broker.start()
    try:
        create(broker.bootstrap, "later", 3, headrace_message_attributes="true")
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g"}
        settings |= {"auto.offset.reset": "earliest", "fetch.wait.max.ms": "100"}
        consumer = Consumer(settings)
        consumer.subscribe(["later"])
        consumer.consume(1, 5)
        for number in range(rounds):
            producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
            first_ms = int(time.time() * 1_000) + 6_000
            for one in range(records):
                due_ms = first_ms + one * 1_000 // records
                headers = [("headrace-deliver-at", str(due_ms).encode())]
                producer.produce("later", str(due_ms), headers=headers)
            assert producer.flush(60) == 0
            before_s, late = cpu_s(broker.pid), list[float]()
            while len(late) < records:
                for message in consumer.consume(1_000, 0.01):
                    late.append(time.time() * 1_000 - int(message.value()))
            cuts = statistics.quantiles(late, n=1_000)
            tell(figure="delayed", round=number, records=records, least_ms=round(min(late), 1),
                 p50_ms=round(cuts[499], 1), p99_ms=round(cuts[989], 1),
                 most_ms=round(max(late), 1),
                 broker_us=round((cpu_s(broker.pid) - before_s) / records * 1e6, 1))  # fmt: skip
        consumer.close()
    finally:
        broker.stop()


# --- the engine alone ------------------------------------------------------------------------


class Engine:
    """One machine, with the bytes that it would store."""

    def __init__(self) -> None:
        self.machine = ShareMachine()
        self.records: list[tuple[bytes, bytes]] = []
        self.stored_bytes = 0

    def ask(self, command: Any, now_ms: int = 1) -> Any:
        """Decide and apply."""
        decision = self.machine.decide(command, now_ms)
        for record in decision.records:
            self.machine.apply(record)
            if isinstance(record, ShareGroupChanged):
                self.stored_bytes += sum(map(len, state_records.encode(record)))
        return decision.reply


def journal(_folder: Path, records: int, _rounds: int) -> None:
    """Bytes of journal records a message that is acknowledged, in batches as clients do."""
    for name, batch in (("in order", 1), ("in order", 10), ("in order", 100), ("at random", 1),
                        ("at random", 10), ("at random", 100)):  # fmt: skip
        engine, rng = Engine(), random.Random(1)
        config = ShareConfig(unfinished_max=10_000)
        engine.ask(OpenShareGroupCommand("g", 0, config))
        engine.stored_bytes = 0
        held: list[int] = []
        end = done = 0
        while done < records:
            if len(held) < 1_000:
                got = engine.ask(AcquireCommand("g", "m", [(end, end + 999)], 1_000)).acquired
                for first, last, _ in got:
                    held += range(first, last + 1)
                    end = last + 1
                if name == "at random":
                    rng.shuffle(held)
            some, held = sorted(held[:batch]), held[batch:]
            ranges = [[some[0], some[0]]]
            for one in some[1:]:
                if one == ranges[-1][1] + 1:
                    ranges[-1][1] = one
                else:
                    ranges.append([one, one])
            settled = [Settlement(first, last, ACCEPT) for first, last in ranges]
            reply = engine.ask(SettleCommand("g", "m", settled, False))
            assert not any(reply.errors), reply.errors
            done += len(some)
        tell(figure="journal", order=name, acknowledged_at_once=batch,
             bytes_per_message=round(engine.stored_bytes / done, 2))  # fmt: skip


def groups(_folder: Path, _records: int, _rounds: int) -> None:
    """1,000 groups with 1,000,000 records in flight on one partition, in order and at random."""
    gc.disable()  # as `serve` does, nearly: it would look at millions of objects again and again
    for name, pattern in (("whole", 0), ("every second one", 1)):
        gc.collect()
        before = rss_bytes(_pid())
        engine = Engine()
        begun_s = time.perf_counter()
        for number in range(1_000):
            group = f"g{number}"
            engine.ask(OpenShareGroupCommand(group, 0, ShareConfig(unfinished_max=2_000)))
            engine.ask(AcquireCommand(group, "m", [(0, 1_999)], 2_000 if pattern else 1_000, True))
            if pattern:
                settled = [Settlement(at, at, ACCEPT) for at in range(1, 2_000, 2)]
                engine.ask(SettleCommand(group, "m", settled, False))
        in_flight = sum(g.window.acquired_records for g in engine.machine.groups.values())
        took_s = time.perf_counter() - begun_s
        used = rss_bytes(_pid()) - before
        begun_s = time.perf_counter()
        stored = [state_records.encode(g.stored_state()) for g in engine.machine.groups.values()]
        size = sum(len(key) + len(value) for key, value in stored)
        for key, value in stored:
            state_records.decode(key, value)
        tell(figure="groups", acquired=name, groups=1_000, in_flight=in_flight,
             mb=round(used / 1e6, 1), bytes_each=round(used / in_flight, 1),
             seconds=round(took_s, 2), snapshot_bytes=size,
             snapshot_and_back_s=round(time.perf_counter() - begun_s, 3))  # fmt: skip
        del engine, stored


def restart(folder: Path, records: int, _rounds: int) -> None:
    """Memory, and the time from a start after kill -9 to the first messages of a group.

    With a backlog of `records` tiny records; then with 1,000 groups that have taken 1,000 of them
    each, and acknowledged every second one.
    """
    broker = Broker(folder / "restart")
    broker.is_damaged = True  # `headrace check` would read the whole backlog
    broker.start()
    try:
        create(broker.kafka, "t", 1)
        batch = encode_batch([Record(at, 1, None, b"", []) for at in range(RECORDS_AT_ONCE)])
        load = Load("backlog", RECORDS_AT_ONCE, 4, records // RECORDS_AT_ONCE)
        send(broker.kafka, "t", produce_request("t", 0, batch), load)
        _tell_restart(broker, "backlog", records)
        for number in range(GROUPS):
            found = _receive(broker, f"g{number}", 1_000)
            assert len(found) == 1_000, len(found)
            path = f"/v1/queues/t/g{number}/settle"
            _ask(broker, "POST", path, {"ack": [one["receipt"] for one in found[1::2]]})
        _tell_restart(broker, f"{GROUPS} groups", records)
    finally:
        broker.kill()


def _tell_restart(broker: Broker, name: str, records: int) -> None:
    _receive(broker, "first", 10)
    assert broker.process is not None
    before_mb = rss_bytes(broker.process.pid) / 1e6
    broker.kill()
    begun_s = time.perf_counter()
    broker.start()
    ready_s = time.perf_counter() - begun_s
    assert len(_receive(broker, "g0", 10)) == 10
    received_s = time.perf_counter() - begun_s
    assert broker.process is not None
    tell(figure="restart", state=name, records=records, mb_before=round(before_mb, 1),
         mb_after=round(rss_bytes(broker.process.pid) / 1e6, 1), ready_s=round(ready_s, 2),
         first_received_s=round(received_s, 2),
         cpu_s=round(cpu_s(broker.process.pid), 2))  # fmt: skip


def _receive(broker: Broker, group: str, count: int) -> list[Any]:
    change = {"set": {"share.auto.offset.reset": "earliest"}}
    _ask(broker, "PATCH", f"/v1/groups/{group}/config", change)
    body = {"max": count, "wait_ms": 20_000}
    found: list[Any] = _ask(broker, "POST", f"/v1/queues/t/{group}/receive", body)["messages"]
    return found


def _ask(broker: Broker, method: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"http://{broker.http}{path}", json.dumps(body).encode(),
        {"Content-Type": "application/json"}, method=method,
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _pid() -> int:
    return int(Path("/proc/self/stat").read_text().split()[0])


FIGURES = {"delayed": delayed, "journal": journal, "groups": groups, "restart": restart}
RECORDS = {"delayed": DUE_AT_ONCE, "restart": 100_000_000}


def main() -> None:
    """Measure one kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=[*FIGURES])
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    records = options.records or RECORDS.get(options.figure, 300_000)
    with tempfile.TemporaryDirectory(prefix="headrace-queues-") as folder:
        FIGURES[options.figure](Path(folder), records, options.rounds)


if __name__ == "__main__":
    main()
