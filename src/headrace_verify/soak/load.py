"""All clients of the load: `python -m headrace_verify.soak.load KAFKA HTTP SEED`.

Invariants: a separate process; KAFKA and HTTP are HOST:PORT,HOST:PORT... It prints "at work" when
every client has completed an operation, and runs until its input is closed; then every client
stops, all acknowledged records are read again, and one line of JSON reports what was done and what
failed.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.routing import Group, Place
from headrace_verify.kafka_wire import KafkaWire
from headrace_verify.real_broker import addresses_in
from headrace_verify.soak import visitors
from headrace_verify.soak.worker import Asking, WireWorker
from headrace_verify.soak.writers import LibraryWriter, RawWriter, find_discrepancies
from headrace_verify.wire.abuse import pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.soak.worker import Worker

ENDLESS, RETAINED, PROBE = "soak-endless", "soak-retained", "soak-probe"
RETENTION_BYTES, SEGMENT_BYTES = 512 << 10, 128 << 10
PARTITIONS = 2
RETAINED_BYTES_MAX = 2 * PARTITIONS * (RETENTION_BYTES + 2 * SEGMENT_BYTES)
"""Twice what retention would keep if it ran continuously."""
JOIN_S = 150


def make_topics(addresses: Sequence[tuple[str, int]]) -> None:
    """Create the permanent topics; the probe's has one partition per broker. Raises OSError."""
    kept = {"retention.bytes": str(RETENTION_BYTES), "segment.bytes": str(SEGMENT_BYTES)}
    long = {"segment.bytes": str(16 << 20)}
    asking = Asking(addresses)
    asking.ask(lambda wire: wire.create_topic(ENDLESS, PARTITIONS, long))
    asking.ask(lambda wire: wire.create_topic(RETAINED, PARTITIONS, kept))
    asking.ask(lambda wire: wire.create_topic(PROBE, len(addresses), kept))
    # So that every broker has already allocated what its first ledger and first group need.
    batch = encode_batch([Record(0, SystemClock().now_ms(), None, b"first")])
    for part in range(len(addresses)):
        place = Place(PROBE, part)
        asking.ask(partial(KafkaWire.produce, topic=PROBE, partition=part, batch=batch), place)
    for number in range(4 * len(addresses)):
        group = Group(f"soak-first-{number}")
        commit = partial(KafkaWire.commit, group=group.name, topic=PROBE, partition=0, offset=1)
        asking.ask(commit, group)
    asking.close()


def crew(
    addresses: Sequence[tuple[str, int]], http: Sequence[tuple[str, int]], seed: str
) -> tuple[list[LibraryWriter | RawWriter], list[Worker]]:
    """Return (the writers, all others)."""
    writers: list[LibraryWriter | RawWriter] = [
        LibraryWriter(addresses, ENDLESS, PARTITIONS, "zstd", 40),
        LibraryWriter(addresses, RETAINED, PARTITIONS, "lz4", 150),
        LibraryWriter(addresses, RETAINED, PARTITIONS, "none", 100),
        RawWriter(addresses, ENDLESS, 0, 5),
        RawWriter(addresses, RETAINED, 1, 20),
    ]
    topics = [ENDLESS, RETAINED]
    others: list[Worker] = [
        visitors.Member(addresses, f"{seed} member 1", topics),
        visitors.Member(addresses, f"{seed} member 2", topics),
        visitors.TopicChurn(addresses, f"{seed} topics"),
        visitors.Dropper(addresses, f"{seed} dropper", http),
        visitors.Idler(addresses, f"{seed} idler"),
        visitors.Sloth(addresses, f"{seed} sloth", ENDLESS),
        visitors.Asker(addresses, f"{seed} asker", RETAINED),
    ]
    return writers, others


def main(kafka: str, http: str, seed: str) -> None:
    """Run until the input is closed."""
    addresses = addresses_in(kafka)
    writers, others = crew(addresses, addresses_in(http), seed)
    workers: list[Worker] = [*writers, *others]
    for worker in workers:
        worker.start()
    while not all(map(_is_at_work, workers)):
        pause(0.05)
    sys.stdout.write("at work\n")
    sys.stdout.flush()
    sys.stdin.read()
    faults = _end(workers)
    acknowledged = [one for writer in writers for one in writer.acknowledged]
    lost, read = ["not read"], 0
    try:
        lost, read = find_discrepancies(addresses, acknowledged, {RETAINED: RETENTION_BYTES})
    except OSError as error:
        lost = [f"the records cannot be read again: {error!r}"]
    load_report: dict[str, Any] = {
        "acknowledged": sum(map(len, acknowledged)),
        "read_again": read,
        "turns": {worker.name: worker.turns for worker in workers},
        "sent_on": sum(one.asking.sent_on for one in workers if isinstance(one, WireWorker)),
        "consumed": sum(one.read for one in others if isinstance(one, visitors.Member)),
        "faults": faults,
        "lost": lost,
    }
    sys.stdout.write(json.dumps(load_report) + "\n")


def _is_at_work(worker: Worker) -> bool:
    """Whether it has completed an operation; a member's first turn takes seconds."""
    return bool(worker.turns or worker.faults or getattr(worker, "read", 0))


def _end(workers: Sequence[Worker]) -> list[str]:
    """Stop them all; returns their failures."""
    for worker in workers:
        worker.over.set()
    faults = []
    for worker in workers:
        worker.join(JOIN_S)
        if worker.is_alive():
            faults.append(f"{worker.name} does not stop")
        faults += worker.faults
        if not worker.turns:
            faults.append(f"{worker.name} has done nothing")
    return faults


if __name__ == "__main__":
    main(*sys.argv[1:])
