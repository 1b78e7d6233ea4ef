"""Changes of topics that meet each other, or that the metadata store refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.kit.broker import running
from tests.kit.records import append, batch

from headrace.errors import (
    ConfigInvalid,
    MetadataUnavailable,
    PolicyViolation,
    StorageUnavailable,
    TopicNameInvalid,
    TopicUnknown,
)
from headrace.metadata.facts import TopicFact, topic_key
from headrace.metadata.memory import MemoryMetadataStore
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.store import MultiOperation
    from headrace.storage.ledger import LedgerId


class SlowMetadata(MemoryMetadataStore):
    """Takes a few turns of the loop to store anything, as a disk does; may refuse it."""

    is_refusing = False

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().put(key, value, expected_version, ephemeral=ephemeral)

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        for _ in range(5):
            await asyncio.sleep(0)
        if self.is_refusing:
            raise MetadataUnavailable("the disk is full")
        return await super().multi(operations)


class RefusingStore(MemoryLedgerStore):
    """Deletes nothing."""

    async def delete(self, ledger: LedgerId) -> None:
        raise StorageUnavailable("the disk is full")


async def test_two_changes_of_one_topics_configuration_at_once_both_count() -> None:
    async with running(metadata=SlowMetadata()) as node:
        await node.topics.create("t")
        topic = node.topics.get("t")
        await asyncio.gather(
            node.topics.change_configs(topic, lambda now: {**now, "retention.ms": "5"}),
            node.topics.change_configs(topic, lambda now: {**now, "segment.ms": "7"}),
        )
        assert topic.fact.configs == {"retention.ms": "5", "segment.ms": "7"}


async def test_a_setting_of_a_newer_broker_is_kept_but_cannot_be_set_here() -> None:
    metadata = MemoryMetadataStore()
    async with running(metadata=metadata) as node:
        await node.topics.create("t")
    entry = await metadata.get(topic_key("t"))
    assert entry is not None
    fact = replace(TopicFact.decode(entry.value), configs={"newer.setting": "1"})
    await metadata.put(topic_key("t"), fact.encode(), entry.version)
    async with running(metadata=metadata) as node:
        topic = node.topics.get("t")
        await node.topics.change_configs(topic, lambda now: {**now, "retention.ms": "5"})
        assert topic.fact.configs == {"newer.setting": "1", "retention.ms": "5"}
        with pytest.raises(ConfigInvalid, match=r"newer\.setting"):
            await node.topics.change_configs(topic, lambda now: {**now, "newer.setting": "2"})


async def test_a_change_of_a_topic_that_was_made_again_meanwhile_leaves_the_new_one_alone() -> None:
    metadata = SlowMetadata()
    async with running(metadata=metadata) as node:
        await node.topics.create("t")
        old = node.topics.get("t")
        outcomes = await asyncio.gather(
            node.topics.delete(old, node.deleted_topics.forget),
            node.topics.create("t"),
            node.topics.change_configs(old, lambda now: {**now, "retention.ms": "5"}),
            node.topics.add_partitions(old, 4),
            return_exceptions=True,
        )
        assert isinstance(outcomes[2], TopicUnknown)
        assert isinstance(outcomes[3], TopicUnknown)
        new = node.topics.get("t")
        async with running(metadata=MemoryMetadataStore(metadata._shared)) as reopened:
            assert reopened.topics.get("t").id == new.id != old.id


async def test_a_topic_whose_deletion_failed_is_served_as_before() -> None:
    metadata = SlowMetadata()
    async with running(metadata=metadata) as node:
        await node.topics.create("t")
        topic = node.topics.get("t")
        metadata.is_refusing = True
        with pytest.raises(MetadataUnavailable):
            await node.topics.delete(topic, node.deleted_topics.forget)
        assert node.topics.get("t") is topic
        assert not topic.partitions[0].is_deleted


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, "__consumer.offsets"])
async def test_no_client_takes_the_name_of_the_offsets_topic(name: str) -> None:
    async with running() as node:
        with pytest.raises((PolicyViolation, TopicNameInvalid)):
            await node.topics.create(name, 1)
        topic = await node.topics.ensure_internal(OFFSETS_TOPIC)
        assert len(topic.partitions) == 2


async def test_a_broker_starts_though_what_a_crash_left_cannot_be_removed_now() -> None:
    store = RefusingStore()
    await store.create()
    async with running(store=store) as node:
        await node.topics.create("t")
        await append(node.topics.get("t").partitions[0], batch(b"v"))


async def test_a_topic_that_another_broker_deleted_is_unknown_and_one_it_changed_is_retried():
    """Found by `headrace verify blackbox`: the answer to a deletion was lost, and the next broker
    that was asked answered UNKNOWN_SERVER_ERROR, which clients take for final."""

    metadata = SlowMetadata()
    async with running(metadata=metadata) as node:
        for name in ("gone", "changed"):
            await node.topics.create(name)
        gone, changed = node.topics.get("gone"), node.topics.get("changed")
        await metadata.delete(topic_key("gone"), gone.version)  # as another broker does
        fact = replace(changed.fact, configs={"segment.ms": "7"})
        await metadata.put(topic_key("changed"), fact.encode(), changed.version)
        with pytest.raises(TopicUnknown):
            await node.topics.delete(gone, node.deleted_topics.forget)
        with pytest.raises(MetadataUnavailable, match="try again"):
            await node.topics.delete(changed, node.deleted_topics.forget)
        await node.topics.delete(changed, node.deleted_topics.forget)
        assert await metadata.get(topic_key("changed")) is None
