"""What a broker's folder may hold after a crash, given its requests and responses.

Invariants: `step` consumes the events of `broker_scenario` up to the crash; `violations` compares a
reopened broker with them. Acknowledged changes are present; pending ones may be; unrequested ones
are not. What was deleted stays deleted, under any name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    HeartbeatCommand,
    OffsetToCommit,
)
from headrace.metadata.facts import PARTITIONS, PartitionFact, partition_of_key
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace_verify.crash.broker_scenario import LASTING, as_stored, batch_of, batches_in, read_all

if TYPE_CHECKING:
    from headrace.broker.node import Node

NO_OFFSET = -1
TEST_EVENTS = {
    "creating",
    "created",
    "configuring",
    "configured",
    "widening",
    "widened",
    "deleting",
    "deleted",
    "append",
    "acknowledged",
    "trimming",
    "trimmed",
    "committing",
    "committed",
    "producer id",
    "meeting",
    "generation",
    "table made",
    "table row",
    "table end",
    "table acknowledged",
}


class PartitionTruth:
    """The batches sent to one partition, in order."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.positions = {0: 0}
        """Offset -> byte position, for every end of a batch."""
        self.end_offset = 0
        self.acknowledged = 0
        """The acknowledged end offset."""
        self.starts = {0}
        """The possible log start offsets."""

    def append(self, batch: bytes) -> None:
        """Add the next batch."""
        stored = as_stored(batch, self.end_offset)
        self.take(stored)

    def take(self, stored: bytes) -> None:
        """Compare with the stored batches."""
        self.data += stored
        for _at, header in batches_in(stored):
            self.end_offset = header.last_offset + 1
        self.positions[self.end_offset] = len(self.data)

    def position_of(self, offset: int) -> int:
        """The base offset of the batch that holds `offset`."""
        return max((at for base, at in self.positions.items() if base <= offset), default=0)


class TopicTruth:
    """One topic, by its id."""

    def __init__(self, name: str, counts: set[int], configs: list[dict[str, str]]) -> None:
        self.name = name
        self.counts = counts
        """The possible partition counts."""
        self.configs = configs
        """The possible overrides."""
        self.partitions: dict[int, PartitionTruth] = {}
        self.is_deleting = False
        self.is_deleted = False

    def partition(self, number: int) -> PartitionTruth:
        """The expected state of one partition."""
        return self.partitions.setdefault(number, PartitionTruth())


class BrokerOracle:
    """Everything that the workers know, up to some point of the operation log."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTruth] = {}
        """By id, hex."""
        self.creating: set[str] = set()
        """Names under which a topic of unknown id may exist."""
        self.offsets: dict[tuple[str, str, int], set[int]] = {}
        """(group, topic, partition) -> offsets that may be committed."""
        self.producer_id_last = -1
        self.generations: dict[str, tuple[int, list[str], bool]] = {}
        """Group -> (generation, its members, whether a rebalance was pending)."""
        self.version = 0
        """The number of events."""

    def step(self, note: tuple[Any, ...]) -> None:
        """Process one event."""
        self.version += 1
        kind, *rest = note
        getattr(self, "_" + kind.replace(" ", "_"))(*rest)

    # --- topics ------------------------------------------------------------------------------

    def _creating(self, name: str) -> None:
        self.creating.add(name)

    def _created(self, name: str, topic_id: str, count: int, configs: dict[str, str]) -> None:
        self.creating.discard(name)
        self.topics[topic_id] = TopicTruth(name, {count}, [configs])
        for key in self.offsets:
            if key[1] == name != LASTING:
                self.offsets[key] = {NO_OFFSET}

    def _configuring(self, topic_id: str, configs: dict[str, str]) -> None:
        self.topics[topic_id].configs.append(configs)

    def _configured(self, topic_id: str, configs: dict[str, str]) -> None:
        self.topics[topic_id].configs = [configs]

    def _widening(self, topic_id: str, count: int) -> None:
        self.topics[topic_id].counts.add(count)

    def _widened(self, topic_id: str, count: int) -> None:
        self.topics[topic_id].counts = {count}

    def _deleting(self, name: str, topic_id: str) -> None:
        self.topics[topic_id].is_deleting = True
        for key, allowed in self.offsets.items():
            if key[1] == name:
                allowed.add(NO_OFFSET)

    def _deleted(self, name: str, topic_id: str) -> None:
        self.topics[topic_id].is_deleted = True
        for key in self.offsets:
            if key[1] == name:
                self.offsets[key] = {NO_OFFSET}

    def _append(self, topic_id: str, partition: int, life: int, number: int) -> None:
        batch = batch_of(topic_id, partition, life, number)
        self.topics[topic_id].partition(partition).append(batch)

    def _acknowledged(self, topic_id: str, partition: int, end_offset: int) -> None:
        truth = self.topics[topic_id].partition(partition)
        truth.acknowledged = max(truth.acknowledged, end_offset)

    def _trimming(self, topic_id: str, partition: int, offset: int) -> None:
        self.topics[topic_id].partition(partition).starts.add(offset)

    def _trimmed(self, topic_id: str, partition: int, offset: int) -> None:
        self.topics[topic_id].partition(partition).starts = {offset}

    # --- groups and producers ----------------------------------------------------------------

    def _committing(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.offsets.setdefault((group, topic, partition), {NO_OFFSET}).add(offset)

    def _committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.offsets[group, topic, partition] = {offset}

    def _producer_id(self, number: int) -> None:
        self.producer_id_last = max(self.producer_id_last, number)

    def _meeting(self, group: str) -> None:
        generation, members, _ = self.generations.get(group, (0, [], False))
        self.generations[group] = (generation, members, True)

    def _generation(self, group: str, generation: int, members: list[str]) -> None:
        self.generations[group] = (generation, members, False)

    # --- after the crash ---------------------------------------------------------------------

    async def violations(self, node: Node) -> list[str]:
        """Compare the reopened broker with the expected state."""
        wrong = self._topic_violations(node)
        for topic in list(node.topics.by_name.values()):
            truth = self.topics.get(topic.id.hex)
            for number, partition in topic.logs:
                await partition.wait_loaded()
                if topic.is_internal:
                    continue
                if truth is None:
                    if partition.end_offset:
                        wrong.append(f"{partition.name} was never written to, but holds records")
                    continue
                data = await read_all(node, partition)
                wrong += _partition_violations(partition, data, truth.partition(number))
        wrong += await self._ledger_violations(node)
        wrong += await self._group_violations(node)
        taken = await node.producer_ids.take()
        if taken <= self.producer_id_last:
            wrong.append(f"producer id {taken} was allocated twice")
        wrong += await self._made_again(node)
        return wrong

    def _topic_violations(self, node: Node) -> list[str]:
        wrong = []
        for topic_id, truth in self.topics.items():
            found = node.topics.by_name.get(truth.name)
            if truth.is_deleting and (found is None or found.id.hex != topic_id):
                continue
            if found is None or found.id.hex != topic_id:
                wrong.append(f"topic {truth.name} is lost")
                continue
            if truth.is_deleted:
                wrong.append(f"topic {truth.name} reappeared after its deletion")
            if found.fact.partition_count not in truth.counts:
                wrong.append(f"topic {truth.name} has {found.fact.partition_count} partitions")
            if found.fact.configs not in truth.configs:
                wrong.append(f"topic {truth.name} has the configuration {found.fact.configs}")
        wrong += [
            f"topic {name} was never created"
            for name, topic in node.topics.by_name.items()
            if not topic.is_internal
            and topic.id.hex not in self.topics
            and name not in self.creating
        ]
        return wrong

    async def _ledger_violations(self, node: Node) -> list[str]:
        """Check that every ledger belongs to an existing topic, and every chain's ledgers exist."""
        there = {int(info.ledger) for info in node.store.list()}
        named: set[int] = set()
        wrong = []
        for entry in await node.metadata.list(PARTITIONS):
            topic_id, number = partition_of_key(entry.key)
            if topic_id not in node.topics.by_id:
                wrong.append(f"partition {number} of a deleted topic is still in the metadata")
            named |= {link.ledger for link in PartitionFact.decode(entry.value).ledgers}
        if there - named:
            wrong.append(f"ledgers {sorted(there - named)} belong to no topic")
        if named - there:
            wrong.append(f"the metadata names ledgers {sorted(named - there)}, which do not exist")
        return wrong

    async def _group_violations(self, node: Node) -> list[str]:
        if OFFSETS_TOPIC not in node.topics.by_name:
            return ["the groups' topic is lost"] if self.offsets or self.generations else []
        wrong = []
        for key, allowed in self.offsets.items():
            found = await _committed(node, key)
            if found not in allowed:
                wrong.append(f"{key} has committed offset {found}, not one of {sorted(allowed)}")
        for group, (generation, members, is_meeting) in self.generations.items():
            wrong += await _generation_violations(node, group, generation, members, is_meeting)
        return wrong

    async def _made_again(self, node: Node) -> list[str]:
        """Check that a topic recreated under a used name has no state of its predecessor."""
        wrong = []
        for name in sorted({truth.name for truth in self.topics.values()}):
            if name in node.topics.by_name:
                continue
            fact = await node.topics.create(name, 2, 1)
            if fact.id.hex in self.topics:
                wrong.append(f"the recreated topic {name} has its old id")
            for _, partition in node.topics.get(name).logs:
                await partition.wait_loaded()
                if partition.end_offset or partition.segments:
                    wrong.append(f"recreated {partition.name} holds old records")
            wrong += [
                f"the recreated topic {name} has the committed offset of {key}"
                for key in self.offsets
                if key[1] == name and await _committed(node, key) != NO_OFFSET
            ]
        return wrong

    @classmethod
    async def after_recovery(cls, node: Node, before: BrokerOracle) -> BrokerOracle:
        """Require the recovered state from now on.

        `before` may contain changes that were lost with the power.
        """
        oracle = cls()
        for topic in node.topics.by_name.values():
            if topic.is_internal:
                continue
            truth = TopicTruth(topic.name, {topic.fact.partition_count}, [topic.fact.configs])
            oracle.topics[topic.id.hex] = truth
            for number, partition in topic.logs:
                await partition.wait_loaded()
                found = truth.partition(number)
                known = before.topics.get(topic.id.hex)
                if known is not None:
                    old = known.partition(number)
                    found.data += old.data[: old.positions[partition.high_watermark]]
                    found.positions = {
                        offset: at
                        for offset, at in old.positions.items()
                        if offset <= partition.high_watermark
                    }
                found.end_offset = found.acknowledged = partition.high_watermark
                found.starts = {partition.log_start_offset}
        for topic_id, truth in before.topics.items():
            if topic_id not in oracle.topics:
                truth.is_deleting = truth.is_deleted = True
                oracle.topics[topic_id] = truth
        for key in before.offsets:
            oracle.offsets[key] = {await _committed(node, key)}
            if key[1] not in node.topics.by_name:  # leftovers of an interrupted deletion
                oracle.offsets[key].add(NO_OFFSET)
        return oracle


def _partition_violations(partition: Any, data: bytes, truth: PartitionTruth) -> list[str]:
    name, mark = partition.name, partition.high_watermark
    wrong = []
    if mark < truth.acknowledged:
        wrong.append(f"{name}: {truth.acknowledged} acknowledged, {mark} remain")
    if partition.log_start_offset not in truth.starts:
        wrong.append(
            f"{name} starts at {partition.log_start_offset}, not at one of {sorted(truth.starts)}"
        )
    if mark not in truth.positions:
        wrong.append(f"{name} ends inside an append, at {mark}")
    elif data != truth.data[truth.position_of(partition.log_start_offset) : truth.positions[mark]]:
        wrong.append(f"{name} holds records that were not sent")
    return wrong


async def _committed(node: Node, key: tuple[str, str, int]) -> int:
    group, topic, partition = key
    reply = await node.groups.submit(FetchOffsetsCommand(group, [(topic, partition)]))
    if reply.error is not None:
        raise reply.error
    return reply.offsets[0].offset


async def _generation_violations(
    node: Node, group: str, generation: int, members: list[str], is_meeting: bool
) -> list[str]:
    """Check that the group has its last acknowledged generation, or a later pending one; none
    older."""
    await _committed(node, (group, LASTING, 0))  # loads the group
    shard = node.groups.shards.shard(node.groups.partition_for(group))
    machine: Any = shard.machine
    found = machine.groups.get(group)
    if found is None:
        return [f"group {group} is lost"] if members else []
    wrong = []
    if found.generation < generation:
        wrong.append(f"group {group} went from generation {generation} back to {found.generation}")
    if not members:
        return wrong
    if not is_meeting:
        beat = await node.groups.submit(HeartbeatCommand(group, generation, members[0]))
        if found.generation != generation or beat.error is not None:
            wrong.append(f"group {group} left generation {generation}: {beat.error}")
    old = CommitCommand(
        group, generation - 1, members[0], None, [OffsetToCommit(LASTING, 0, 1 << 40)]
    )
    if (await node.groups.submit(old)).results[0].error is None:
        wrong.append(f"group {group} accepts a commit of generation {generation - 1}")
    return wrong
