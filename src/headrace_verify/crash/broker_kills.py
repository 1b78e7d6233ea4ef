"""Attack: kill -9 of real brokers under load, then read everything back over the protocol."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from headrace.errors import Fatal
from headrace.records.codec import iterate_records
from headrace_verify.crash.broker_load import (
    GROUP,
    LIBRARY_PARTITIONS,
    PARTITION_COUNT,
    RAW_PARTITION,
    TOPIC,
    LibraryLoad,
    RawLoad,
    value_of,
)
from headrace_verify.kafka_wire import KafkaWire, Refused
from headrace_verify.real_broker import RealBroker
from headrace_verify.rng import seeded
from headrace_verify.verdicts import CANNOT_RUN

if TYPE_CHECKING:
    from headrace_verify.task import Task

_TOPIC_CONFIG = {"segment.bytes": "200000"}  # so that ledgers roll under load


def run_broker_kills(task: Task) -> None:
    """Start, load, kill at a random moment, restart, verify everything; repeat."""
    broker = RealBroker(task.folder / "broker")
    library: LibraryLoad | None = None
    raw: RawLoad | None = None
    try:
        broker.start()
        wire = KafkaWire(broker.address)
        wire.create_topic(TOPIC, PARTITION_COUNT, _TOPIC_CONFIG)
        wire.find_coordinator(GROUP)
        raw = RawLoad(task.seed, broker, wire.new_producer())
        wire.close()
        library = LibraryLoad(task.seed, broker)
        library.start()
        raw.start()
        raw = _cycles(task, broker, library, raw)
        raw.finish()
        left = library.finish()
        if left:
            task.wrong(f"{left} records of the library got no result", seed=task.seed)
        _verify_all(task, broker, library, raw)
        acknowledged = library.count
        task.figures["acknowledged by the library"] = acknowledged
        task.figures["acknowledged batches, raw"] = raw.acknowledged
    except CANNOT_RUN as error:
        task.could_not_run(f"{type(error).__name__}: {error}")
    except Fatal as error:
        task.wrong(f"{type(error).__name__}: {error}", seed=task.seed, log=broker.log_tail())
    finally:
        broker.kill()
        shutil.rmtree(broker.data_dir, ignore_errors=True)


def _cycles(task: Task, broker: RealBroker, library: LibraryLoad, raw: RawLoad) -> RawLoad:
    rng = seeded(task.seed)
    starts: list[float] = []
    while task.has_time():
        _wait_for_acknowledgements(library, raw)
        time.sleep(rng.choice((0.0, 0.05, 0.3)) + 0.2 * rng.random())
        broker.kill()
        raw.join()
        if rng.random() < 0.2:  # some die while they recover
            broker.start_and_die(rng.random() * 0.5)
        starts.append(broker.start())
        task.runs += 1
        task.checked += 1
        _verify_all(task, broker, library, raw)
        raw = raw.again()
        raw.start()
    task.figures["start after a kill, mean s"] = round(sum(starts) / max(1, len(starts)), 2)
    return raw


def _wait_for_acknowledgements(library: LibraryLoad, raw: RawLoad) -> None:
    """Wait until both clients make progress again, or a time-out."""
    written, raw_written = library.count, raw.acknowledged
    for _ in range(300):
        if library.count > written and raw.acknowledged > raw_written:
            return
        time.sleep(0.01)


def _verify_all(task: Task, broker: RealBroker, library: LibraryLoad, raw: RawLoad) -> None:
    """Read everything and compare it with what the clients know."""
    wire = KafkaWire(broker.address)
    try:
        for partition in LIBRARY_PARTITIONS:
            known = dict(library.acknowledged[partition])
            values = _read(wire, partition)
            wrong = _compare(task.seed, partition, values, known)
            if len(values) > library.sent[partition]:
                wrong.append(f"{len(values)} records, but {library.sent[partition]} were sent")
            for text in wrong:
                task.wrong(f"partition {partition}: {text}", seed=task.seed, cycle=task.runs)
            task.add("records compared", len(values))
        for text in _check_raw(task, wire, raw):
            task.wrong(f"partition {RAW_PARTITION}: {text}", seed=task.seed, cycle=task.runs)
        if library.failed:
            task.wrong(f"the library failed: {library.failed[0]}", seed=task.seed)
        if raw.refused:
            task.wrong(f"a valid request was rejected: {raw.refused[0]}", seed=task.seed)
    except (OSError, Refused) as error:
        task.wrong(f"stored records cannot be read: {error}", seed=task.seed, cycle=task.runs)
    finally:
        wire.close()


def _check_raw(task: Task, wire: KafkaWire, raw: RawLoad) -> list[str]:
    known: dict[int, int] = {}
    for (batch, first), offset in zip(raw.batches, raw.offsets, strict=False):
        for at in range(int.from_bytes(batch[57:61], "big")):
            known[first + at] = offset + at
    values = _read(wire, RAW_PARTITION)
    wrong = _compare(task.seed, RAW_PARTITION, values, known)
    if len(values) not in (len(known), raw.next_number):
        wrong.append(f"{len(values)} records, expected {len(known)} or {raw.next_number}")
    task.add("records compared", len(values))
    committed = wire.committed(GROUP, TOPIC, RAW_PARTITION)
    if not raw.committed <= committed <= max(raw.committed, raw.committed_sent):
        wrong.append(f"committed offset {committed}, but {raw.committed} was acknowledged")
    if raw.acknowledged == len(raw.batches) and raw.acknowledged:
        # Only then is it the last batch of this producer that the broker has seen.
        again = wire.produce(TOPIC, RAW_PARTITION, raw.batches[-1][0])
        if again != raw.offsets[-1]:
            wrong.append(f"a retry returned offset {again}, the first attempt {raw.offsets[-1]}")
        if len(_read(wire, RAW_PARTITION)) != len(values):
            wrong.append("a retry of an acknowledged batch was appended again")
        task.add("retries answered as duplicates")
    return wrong


def _read(wire: KafkaWire, partition: int) -> list[bytes]:
    """Return all values, indexed by offset. Raises Refused."""
    values: list[bytes] = []
    while True:
        data, high_watermark = wire.fetch(TOPIC, partition, len(values))
        if not data and len(values) >= high_watermark:
            return values
        for record in iterate_records(data):
            if record.offset < len(values):
                continue
            if record.offset > len(values):
                raise ConnectionError(f"offset {record.offset} follows {len(values) - 1}")
            values.append(record.value or b"")


def _compare(seed: int, partition: int, values: list[bytes], known: dict[int, int]) -> list[str]:
    """Check the order: offsets are dense and each producer keeps its order, so record n is at
    offset n."""
    wrong = []
    for number, value in enumerate(values):
        if value != value_of(seed, partition, number):
            wrong.append(f"offset {number} holds {value[:40]!r}")
            break
    for number, offset in known.items():
        if offset not in (number, -1):
            wrong.append(f"record {number} was acknowledged at offset {offset}")
            break
    if known and max(known) >= len(values):
        wrong.append(
            f"record {max(known)} was acknowledged, but only {len(values)} records exist: lost"
        )
    return wrong
