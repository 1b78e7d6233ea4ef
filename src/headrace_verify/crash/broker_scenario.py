"""A random workload on a broker without sockets: topics created, altered and deleted; groups.

Invariants: a worker makes one request at a time and records an event before it and after the
response. Workers run concurrently, each with its own topic or group, so the possible states after a
crash are always known. Batches are self-describing: topic id, partition, life and number determine
every byte, so records of a deleted topic are never mistaken for those of its successor.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.coordinators import producer_ids, shard_snapshot
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.coordination.groups.commands import (
    CommitCommand,
    JoinCommand,
    OffsetToCommit,
    SyncCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.kafka.handlers.topics import delete_topics
from headrace.records.batch import PLACEMENT, read_header
from headrace.records.codec import Record, encode_batch
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace_verify.rng import seeded
from headrace_verify.task import patched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.log.partition_log import PartitionLog

    Note = Callable[..., None]

CONFIG = BrokerConfig(offsets_partition_count=2)
NAMES = ("orders", "payments")
LASTING = "lasting"
"""A topic that is never deleted; the members' committed offsets are in it."""
SIMPLE_GROUP, TEAM = "simple", "team"
_SESSION = ClientSession("PLAINTEXT", "127.0.0.1", ANONYMOUS)
_SEGMENT_BYTES = "2500"


def small_settings() -> ExitStack:
    """Small blocks of producer ids and frequent snapshots, so that crashes hit them."""
    stack = ExitStack()
    stack.enter_context(patched(producer_ids, "BLOCK_SIZE", 2))
    stack.enter_context(patched(shard_snapshot, "SNAPSHOT_BYTES_MIN", 3_000))
    return stack


def has_quick_groups(node: Node) -> None:
    """Rebalances end as soon as all members have joined."""
    node.groups.config = GroupConfig(initial_rebalance_delay_ms=0)


@lru_cache(maxsize=20_000)
def batch_of(topic_id: str, partition: int, life: int, number: int) -> bytes:
    """Return batch `number` of a partition in one life of the broker."""
    rng = seeded(f"{topic_id} {partition} {life} {number}")
    records = [
        Record(0, 1_000 * number + at, b"%d" % number, rng.randbytes(rng.choice((5, 60, 300))))
        for at in range(rng.choice((1, 2, 4)))
    ]
    return encode_batch(records)


def as_stored(batch: bytes, base_offset: int) -> bytes:
    """Return the batch as stored at `base_offset`."""
    return PLACEMENT.pack(base_offset, read_header(batch).length, 0) + batch[16:]


async def read_all(node: Node, partition: PartitionLog) -> bytes:
    """Read every batch from the one with the log start offset to the high watermark."""
    parts: list[bytes] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        data = bytes(await partition.reader.read(offset, 1 << 20))
        if not data:
            return b"".join(parts) + b" and nothing where records are expected"
        parts.append(data)
        for _at, header in batches_in(data):
            offset = header.last_offset + 1
    return b"".join(parts)


def batches_in(data: bytes) -> Iterator[tuple[int, Any]]:
    """Return (position, header) of each complete batch."""
    at = 0
    while at < len(data):
        header = read_header(data, at)
        yield at, header
        at += header.size


class _TopicWorker:
    """The owner of one topic's name."""

    def __init__(self, node: Node, note: Note, name: str, seed: str, life: int) -> None:
        self._node = node
        self._note = note
        self._name = name
        self._life = life
        self._rng = seeded(f"{seed} {name}")
        self._numbers: dict[tuple[str, int], int] = {}
        self._committed = 1_000 * life
        self._last: Any = None

    async def run(self, turns: int) -> None:
        for _ in range(turns):
            topic = self._node.topics.by_name.get(self._name)
            if topic is None:
                await self._create()
                continue
            draw = self._rng.random()
            if draw < 0.10 and self._name != LASTING:
                await self._delete(topic)
            elif draw < 0.18:
                await self._configure(topic)
            elif draw < 0.22 and topic.fact.partition_count < 3:
                await self._widen(topic)
            elif draw < 0.32:
                await self._commit(topic)
            elif draw < 0.40:
                await self._trim(topic)
            elif draw < 0.46:
                await self._choose(topic).roll_now()
            else:
                await self._append(topic)
        if self._last is not None:
            await self._last.wait()

    def _choose(self, topic: Any) -> PartitionLog:
        return cast("PartitionLog", self._rng.choice(topic.partitions))

    async def _create(self) -> None:
        configs = {"segment.bytes": _SEGMENT_BYTES}
        self._note("creating", self._name)
        count = self._rng.choice((1, 2))
        fact = await self._node.topics.create(self._name, count, 1, configs)
        self._note("created", self._name, fact.id.hex, count, configs)

    async def _delete(self, topic: Any) -> None:
        self._note("deleting", self._name, topic.id.hex)
        request = SimpleNamespace(topic_names=[self._name])
        context = cast("Context", SimpleNamespace(version=1, session=_SESSION))
        answer = await delete_topics(self._node, request, context)
        assert not answer["responses"][0]["error_code"], answer
        self._note("deleted", self._name, topic.id.hex)
        if self._rng.random() < 0.7:
            await self._create()

    async def _configure(self, topic: Any) -> None:
        retention_ms = str(3_600_000 * self._rng.randint(1, 1_000_000))
        configs = {"segment.bytes": _SEGMENT_BYTES, "retention.ms": retention_ms}
        self._note("configuring", topic.id.hex, configs)
        await self._node.topics.change_configs(topic, lambda _before: configs)
        self._note("configured", topic.id.hex, configs)

    async def _widen(self, topic: Any) -> None:
        count = topic.fact.partition_count + 1
        self._note("widening", topic.id.hex, count)
        await self._node.topics.add_partitions(topic, count)
        self._note("widened", topic.id.hex, count)

    async def _commit(self, topic: Any) -> None:
        partition = self._rng.randrange(topic.fact.partition_count)
        self._committed += 1
        where = (SIMPLE_GROUP, self._name, partition, self._committed)
        self._note("committing", *where)
        offset = OffsetToCommit(self._name, partition, self._committed)
        reply = await self._node.groups.submit(CommitCommand(SIMPLE_GROUP, -1, "", None, [offset]))
        assert reply.results[0].error is None, reply
        self._note("committed", *where)

    async def _trim(self, topic: Any) -> None:
        partition = self._choose(topic)
        await partition.wait_loaded()
        offset = self._rng.randint(partition.log_start_offset, partition.high_watermark)
        where = (topic.id.hex, topic.partitions.index(partition), offset)
        self._note("trimming", *where)
        await partition.trim(offset)
        self._note("trimmed", *where)

    async def _append(self, topic: Any) -> None:
        for _ in range(self._rng.choice((1, 2, 4))):
            number = self._rng.randrange(topic.fact.partition_count)
            partition = topic.require_log(number)
            key = (topic.id.hex, number)
            which = self._numbers[key] = self._numbers.get(key, -1) + 1
            batch = batch_of(topic.id.hex, number, self._life, which)
            self._note("append", topic.id.hex, number, self._life, which)
            await partition.wait_loaded()
            while (appended := partition.append(batch, read_header(batch))) is None:
                ready = partition.ready
                if ready is not None:
                    await ready.wait()
            appended.completion.then(self._appended, (topic.id.hex, number, partition.end_offset))
            self._last = appended.completion
        if self._rng.random() < 0.5:
            await self._last.wait()
        else:
            await asyncio.sleep(0)

    def _appended(self, error: BaseException | None, where: tuple[str, int, int]) -> None:
        assert error is None, error
        self._note("acknowledged", *where)


class _TeamWorker:
    """The members of one group, which rejoin repeatedly and commit; also allocates producer ids."""

    def __init__(self, node: Node, note: Note, seed: str, life: int) -> None:
        self._node = node
        self._note = note
        self._group = f"{TEAM}-{life}"
        self._rng = seeded(f"{seed} {TEAM}")
        self._members: list[str] = []
        self._generation = -1
        self._joins = 0
        self._committed = 1_000 * life

    async def run(self, turns: int) -> None:
        await self._meet()
        for _ in range(turns // 2):
            draw = self._rng.random()
            if draw < 0.3:
                await self._meet()
            elif draw < 0.6:
                taken = await self._node.producer_ids.take()
                self._note("producer id", taken)
            else:
                await self._commit()
            for _ in range(self._rng.randrange(4)):
                await asyncio.sleep(0)

    async def _meet(self) -> None:
        self._note("meeting", self._group)
        members = self._members or [""]
        if len(members) == 1 and self._members and self._rng.random() < 0.3:
            members = ["", *members]  # the new one first: its join starts a rebalance
        replies = await asyncio.gather(*(self._join(member) for member in members))
        assert all(reply.error is None for reply in replies), replies
        self._members = [reply.member_id for reply in replies]
        generation = replies[0].generation
        synced = await asyncio.gather(
            *(self._sync(reply.member_id, reply.leader, generation) for reply in replies)
        )
        assert all(reply.error is None for reply in synced), synced
        self._generation = generation
        self._note("generation", self._group, generation, self._members)

    async def _join(self, member: str) -> Any:
        self._joins += 1
        name = b"subscription %d" % self._joins  # a new one, so that all must rejoin
        command = JoinCommand(
            self._group, member, None, "verify", "/", 60_000, 60_000, "consumer", [("range", name)]
        )
        return await self._node.groups.submit(command)

    async def _sync(self, member: str, leader: str, generation: int) -> Any:
        assignments = []
        if member == leader:
            assignments = [(other, other.encode()[:20]) for other in self._members]
        command = SyncCommand(self._group, generation, member, assignments=assignments)
        return await self._node.groups.submit(command)

    async def _commit(self) -> None:
        self._committed += 1
        where = (self._group, LASTING, 0, self._committed)
        self._note("committing", *where)
        offset = OffsetToCommit(LASTING, 0, self._committed)
        member = self._members[0]
        command = CommitCommand(self._group, self._generation, member, None, [offset])
        reply = await self._node.groups.submit(command)
        assert reply.results[0].error is None, reply
        self._note("committed", *where)


async def run_broker_life(node: Node, note: Note, seed: str, turns: int, life: int) -> None:
    """Run all workers concurrently to their end."""
    await node.topics.ensure_internal(OFFSETS_TOPIC)
    workers: list[_TopicWorker | _TeamWorker] = [
        _TopicWorker(node, note, name, f"{seed} {life}", life) for name in (*NAMES, LASTING)
    ]
    workers.append(_TeamWorker(node, note, f"{seed} {life}", life))
    await asyncio.gather(*(worker.run(turns) for worker in workers))
