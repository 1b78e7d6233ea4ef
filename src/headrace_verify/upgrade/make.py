"""Creates the golden set of this version: folders with all kinds of contents, and a manifest.

Invariants: the broker's own parts write; acknowledged data is compared with what is read before
anything is packed, so that no set is wrong from the start.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import (
    CommitCommand,
    JoinCommand,
    OffsetToCommit,
    SyncCommand,
)
from headrace.errors import Fatal
from headrace.metadata.config_facts import BROKER_CONFIG, BrokerConfigFact
from headrace.metadata.store import ABSENT
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch
from headrace.records.compression import CODEC_NAMES
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace_verify.crash.broker_scenario import as_stored
from headrace_verify.rng import seeded
from headrace_verify.upgrade import archive
from headrace_verify.upgrade.opened import OBJECTS, Opened, everything, facts_in, opened
from headrace_verify.upgrade.parts import describe_parts, has_module

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.node import Node

MANIFEST = "manifest.json"
KILLED, STOPPED, TIERED = "killed", "stopped", "tiered"
IDEMPOTENT_BATCHES = 7
"""More than the five that a log keeps per producer."""
SMALL_SEGMENT = {"segment.bytes": "1500"}
TEAM, SIMPLE = "team", "simple"


def batch_of(
    topic: str,
    number: int,
    *,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    padding: int = 0,
) -> bytes:
    """Batch `number` of a topic; `producer`: (id, epoch, first sequence)."""
    rng = seeded(f"{topic} {number}")
    records = [
        Record(
            0,
            1_000 * (number + 1) + at,
            None if at == 1 else b"key %d" % number,
            None if at == 2 else rng.randbytes(20) + b"%d " % number * 20 + bytes(padding),
            [("header", b"of %d" % at)] if at == 0 else [],
        )
        for at in range(number % 3 + 1)
    ]
    return encode_batch(
        records,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )


async def append(node: Node, topic: str, number: int, batch: bytes) -> int:
    """Append to a partition and wait for the acknowledgement; returns the base offset."""
    partition = node.topics.get(topic).require_log(number)
    await partition.wait_loaded()
    while (appended := partition.append(batch, read_header(batch))) is None:
        if partition.ready is not None:
            await partition.ready.wait()
    await appended.completion.wait()
    return appended.base_offset


class _Writer:
    """What was sent to each partition, as it must be read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.data: dict[str, bytes] = {}
        self.last: dict[str, tuple[bytes, int]] = {}
        """By partition: a producer's last batch, and its offset."""

    async def append(self, topic: str, number: int, batch: bytes, producer: bool = False) -> None:
        offset = await append(self.node, topic, number, batch)
        where = f"{topic}-{number}"
        self.data[where] = self.data.get(where, b"") + as_stored(batch, offset)
        if producer:
            self.last[where] = batch, offset

    async def idempotent(self, topic: str, number: int, producer: int, epoch: int) -> None:
        """Some batches of one producer, the last of which will be retried."""
        sequence = 0
        for at in range(IDEMPOTENT_BATCHES):
            batch = batch_of(topic, at, producer=(producer, epoch, sequence))
            await self.append(topic, number, batch, producer=True)
            sequence += read_header(batch).record_count


async def _fill(found: Opened) -> _Writer:
    """Everything that a folder can hold, except tiers."""
    node = found.node
    writer = _Writer(node)
    topics = node.topics
    await topics.create("orders", 2, 1, {**SMALL_SEGMENT, "retention.ms": "-1"})
    for name in CODEC_NAMES:
        await topics.create(f"codec.{name}", 1, 1, {})
    await topics.create("kept_in-zstd", 1, 1, {"compression.type": "zstd"})
    await topics.create("stamped", 1, 1, {"message.timestamp.type": "LogAppendTime"})
    await topics.create("unsynced", 1, 1, {"flush.ms": "600000"})
    await topics.create("trimmed", 1, 1, SMALL_SEGMENT)
    await topics.create("empty", 3, 1, {})
    await topics.ensure_internal(OFFSETS_TOPIC)
    await topics.create("again", 1, 1, {})
    for number in range(3):
        await append(node, "again", 0, batch_of("gone", number))
    await _commit(node, SIMPLE, "again", 0, 3)
    await node.services.topics.delete("again")
    await topics.create("again", 2, 1, {"max.message.bytes": "2000000"})
    await writer.append("again", 1, batch_of("again", 1))
    for number in range(12):
        await writer.append("orders", 0, batch_of("orders", number))
        await writer.append("trimmed", 0, batch_of("trimmed", number))
    await writer.idempotent("orders", 1, await node.producer_ids.take(), 0)
    await topics.get("orders").require_log(1).roll_now()
    await writer.idempotent("again", 0, await node.producer_ids.take(), 3)
    await topics.create("indexed", 1, 1, {})
    for number in range(30):  # an index has an entry per 4 KiB; and the log is checkpointed once
        await writer.append("indexed", 0, batch_of("indexed", number, padding=3_000))
    await topics.get("indexed").require_log(0).roll_now()
    for codec, name in enumerate(CODEC_NAMES):
        for number in range(3):
            await writer.append(f"codec.{name}", 0, batch_of(name, number, codec=codec))
    # The broker rewrites these, so their bytes differ from those sent: their readers check them.
    for number in range(3):
        await append(node, "kept_in-zstd", 0, batch_of("kept", number))
        await append(node, "stamped", 0, batch_of("stamped", number))
    await topics.get("trimmed").require_log(0).trim(8)
    await topics.change_configs(topics.get("empty"), lambda _: {"retention.bytes": "123456"})
    await topics.add_partitions(topics.get("empty"), 4)
    await found.metadata.put(
        BROKER_CONFIG, BrokerConfigFact({"log.retention.ms": "1000"}).encode(), ABSENT
    )
    await _fill_groups(node)
    for number in range(2):
        await writer.append("unsynced", 0, batch_of("unsynced", number))
    return writer


async def _commit(
    node: Node, group: str, topic: str, partition: int, offset: int, text: str = ""
) -> None:
    commit = OffsetToCommit(topic, partition, offset, 0, text)
    reply = await node.groups.submit(CommitCommand(group, -1, "", None, [commit]))
    if reply.results[0].error is not None:
        raise reply.results[0].error


async def _fill_groups(node: Node) -> None:
    """A group that only commits, and one with members."""
    for offset in (1, 5, 9):
        await _commit(node, SIMPLE, "orders", 0, offset, f"at {offset}")
    await _commit(node, SIMPLE, "again", 1, 1)
    join = JoinCommand(
        TEAM, "", None, "member", "/127.0.0.1", 60_000, 90_000, "consumer", [("range", b"topics")]
    )
    joined = await node.groups.submit(join)
    sync = SyncCommand(TEAM, joined.generation, joined.member_id)
    sync.assignments = [(joined.member_id, b"everything")]
    synced = await node.groups.submit(sync)
    for reply in (joined, synced):
        if reply.error is not None:
            raise reply.error
    commit = OffsetToCommit("orders", 1, 4, 0, "of a member")
    command = CommitCommand(TEAM, joined.generation, joined.member_id, None, [commit])
    await node.groups.submit(command)


async def _fill_tiers(found: Opened) -> _Writer:
    """Ledgers in object storage: some only there, some in both places, one open."""
    node = found.node
    writer = _Writer(node)
    remote = {"remote.storage.enable": "true", "retention.ms": "-1", **SMALL_SEGMENT}
    await node.topics.create("moved", 1, 1, {**remote, "local.retention.ms": "1"})
    await node.topics.create("copied", 1, 1, {**remote, "local.retention.ms": "-2"})
    await node.topics.ensure_internal(OFFSETS_TOPIC)
    assert node.tiering is not None
    for name in ("moved", "copied"):
        for number in range(12):
            await writer.append(name, 0, batch_of(name, number))
            if number % 4 == 3:
                await node.topics.get(name).require_log(0).roll_now()
    for _ in range(3):
        await node.tiering.round()
    await writer.append("moved", 0, batch_of("moved", 12))
    return writer


async def _make_folder(root: Path, name: str) -> dict[str, Any]:
    """Create one folder of the set; returns its part of the manifest."""
    folder, work = root / name, root / f"{name}.work"
    objects = root / f"{name}.{OBJECTS}" if name == TIERED else None
    async with opened(work, name, objects, is_killed=name != STOPPED) as found:
        writer = await (_fill(found) if objects is None else _fill_tiers(found))
        gives, data = await everything(found.node)
        taken = await found.node.producer_ids.take()
        await asyncio.sleep(0.3)  # until the metadata's journal is emptied
    work.rename(folder)
    for scrap in ("lock", "metadata.sqlite-shm"):
        (folder / scrap).unlink(missing_ok=True)
    for where, sent in writer.data.items():
        held = data[where]
        if not held or (held != sent and (where != "trimmed-0" or not sent.endswith(held))):
            raise Fatal(f"{name}: {where} does not hold what was acknowledged: check the log")
    for where, held in data.items():
        (root / "bytes" / name).mkdir(parents=True, exist_ok=True)
        (root / "bytes" / name / where).write_bytes(held)
    copy = root / "look"
    shutil.copytree(folder, copy)
    facts = await facts_in(copy)
    shutil.rmtree(copy)
    last = {where: [batch.hex(), offset] for where, (batch, offset) in writer.last.items()}
    return {
        "gives": gives,
        "facts": facts,
        "producer_id_taken": taken,
        "last_batches": last,
        "has_objects": objects is not None,
    }


async def make_set(root: Path) -> list[str]:
    """Create the set in an empty folder; returns what was skipped and why."""
    skipped = []
    folders = {}
    for name in (KILLED, STOPPED, TIERED):
        if name == TIERED and not has_module("obstore"):
            skipped.append("tiered: obstore is not installed")
            continue
        folders[name] = await _make_folder(root, name)
    parts, left_out = describe_parts()
    manifest = {"headrace": archive.current(), "folders": folders, "parts": parts}
    (root / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return [*skipped, *left_out]
