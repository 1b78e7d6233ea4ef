"""All clients of the load: `python -m headrace.verify.soak.load HOST PORT HTTP-PORT SEED`.

Rules of the room: a process of its own. It says "at work" when every client has done something, and
works until its input ends; then every client stops, all that was acknowledged is read again, and
one line of JSON says what was done and what was wrong.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from headrace.verify.kafka_wire import KafkaWire
from headrace.verify.soak import visitors
from headrace.verify.soak.worker import TIMEOUT_S
from headrace.verify.soak.writers import LibraryWriter, RawWriter, what_is_wrong
from headrace.verify.wire.abuse import pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.verify.soak.worker import Worker

ENDLESS, RETAINED, PROBE = "soak-endless", "soak-retained", "soak-probe"
RETENTION_BYTES, SEGMENT_BYTES = 512 << 10, 128 << 10
PARTITIONS = 2
RETAINED_BYTES_MAX = 2 * PARTITIONS * (RETENTION_BYTES + 2 * SEGMENT_BYTES)
"""Twice what retention would keep if it looked all the time."""
JOIN_S = 150
BROKER_OPTIONS = ("--retention-check-interval-ms", "1000")


def make_topics(address: tuple[str, int]) -> None:
    """The topics that stay. Raises OSError."""
    wire = KafkaWire(address, TIMEOUT_S)
    kept = {"retention.bytes": str(RETENTION_BYTES), "segment.bytes": str(SEGMENT_BYTES)}
    wire.create_topic(ENDLESS, PARTITIONS, {"segment.bytes": str(16 << 20)})
    wire.create_topic(RETAINED, PARTITIONS, kept)
    wire.create_topic(PROBE, 1, kept)
    wire.close()


def crew(
    address: tuple[str, int], http: tuple[str, int], seed: str
) -> tuple[list[LibraryWriter | RawWriter], list[Worker]]:
    """(the writers, all others)."""
    writers: list[LibraryWriter | RawWriter] = [
        LibraryWriter(address, ENDLESS, PARTITIONS, "zstd", 40),
        LibraryWriter(address, RETAINED, PARTITIONS, "lz4", 150),
        LibraryWriter(address, RETAINED, PARTITIONS, "none", 100),
        RawWriter(address, ENDLESS, 0, 5),
        RawWriter(address, RETAINED, 1, 20),
    ]
    topics = [ENDLESS, RETAINED]
    others: list[Worker] = [
        visitors.Member(address, f"{seed} member 1", topics),
        visitors.Member(address, f"{seed} member 2", topics),
        visitors.TopicChurn(address, f"{seed} topics"),
        visitors.Dropper(address, f"{seed} dropper", http),
        visitors.Idler(address, f"{seed} idler"),
        visitors.Sloth(address, f"{seed} sloth", ENDLESS),
        visitors.Asker(address, f"{seed} asker", RETAINED),
    ]
    return writers, others


def main(host: str, port: str, http_port: str, seed: str) -> None:
    """Work until the input ends."""
    address = (host, int(port))
    writers, others = crew(address, (host, int(http_port)), seed)
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
        lost, read = what_is_wrong(address, acknowledged, {RETAINED: RETENTION_BYTES})
    except OSError as error:
        lost = [f"the records cannot be read again: {error!r}"]
    told: dict[str, Any] = {
        "acknowledged": sum(map(len, acknowledged)),
        "read_again": read,
        "turns": {worker.name: worker.turns for worker in workers},
        "consumed": sum(one.read for one in others if isinstance(one, visitors.Member)),
        "faults": faults,
        "lost": lost,
    }
    sys.stdout.write(json.dumps(told) + "\n")


def _is_at_work(worker: Worker) -> bool:
    """Whether it has done something; a member's first turn takes seconds."""
    return bool(worker.turns or worker.faults or getattr(worker, "read", 0))


def _end(workers: Sequence[Worker]) -> list[str]:
    """Stop them all; what should not have happened to them."""
    for worker in workers:
        worker.over.set()
    faults = []
    for worker in workers:
        worker.join(JOIN_S)
        if worker.is_alive():
            faults.append(f"{worker.name} does not end")
        faults += worker.faults
        if not worker.turns:
            faults.append(f"{worker.name} has done nothing")
    return faults


if __name__ == "__main__":
    main(*sys.argv[1:])
