"""Group settings, and the existing share groups, as stored in the metadata store.

Invariants: the metadata store holds the truth, one fact for each group that has overrides or, as a
share group, has begun on a topic; a change is a compare-and-set. Other brokers' changes arrive
through a MetadataCache. What a share group has consumed is in the journals of its partitions.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_config import (
    DEAD_LETTER_TOPIC,
    check_group_config,
    own_dead_letter_topic,
    share_config,
)
from headrace.errors import GroupIdInvalid, MetadataUnavailable, VersionConflict
from headrace.metadata.decoding import decode_fact
from headrace.metadata.group_facts import GroupFact, group_key, group_of_key
from headrace.metadata.store import ABSENT, MetadataEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from uuid import UUID

    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.config import ShareConfig
    from headrace.metadata.store import MetadataStore

GROUP_ID_LENGTH_MAX = 255
"""Characters of the id of a share group or of a group with settings: the id is part of a key."""
ATTEMPTS_MAX = 16
"""Attempts of one change while other brokers change the same group: each of them writes it once at
its beginning."""
NO_OVERRIDES: Mapping[str, str] = {}
NO_PARTITIONS: Mapping[UUID, int] = {}


class ConfiguredGroups:
    """All groups that have settings of their own."""

    def __init__(
        self, metadata: MetadataStore, topic: Callable[[str], Topic | None] = lambda _: None
    ) -> None:
        """`topic(name)`: the topic of that name, if there is one."""
        self._topic = topic
        self._metadata = metadata
        self._facts: dict[str, GroupFact] = {}
        self._topics: dict[str, tuple[UUID, ...]] = {}
        self._versions: dict[str, int] = {}
        self._configs: dict[str, ShareConfig] = {}
        self._default = share_config({})
        self._changing = asyncio.Lock()

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a group's key."""
        group_id = group_of_key(key)
        self._configs.pop(group_id, None)
        fact = None if entry is None else decode_fact(GroupFact, entry)
        topics = () if fact is None else fact.topics()
        if topics:
            self._topics[group_id] = topics
        else:
            self._topics.pop(group_id, None)
        if entry is None or fact is None:
            self._facts.pop(group_id, None)
            self._versions.pop(group_id, None)
        else:
            self._facts[group_id] = fact
            self._versions[group_id] = entry.version

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """The overrides of the group."""
        fact = self._facts.get(group_id)
        return NO_OVERRIDES if fact is None else fact.configs

    def values(self, name: str) -> set[str]:
        """The values that any group has set for this setting."""
        return {fact.configs[name] for fact in self._facts.values() if name in fact.configs}

    def share_config(self, group_id: str) -> ShareConfig:
        """The group's settings for its share partitions."""
        fact = self._facts.get(group_id)
        if fact is None or not fact.configs:
            return self._default
        config = self._configs.get(group_id)
        if config is None:
            config = self._configs[group_id] = share_config(fact.configs)
        return config

    async def change(
        self,
        group_id: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_validated_only: bool = False,
    ) -> None:
        """Apply `change` to the overrides. Raises ConfigInvalid, GroupIdInvalid,
        MetadataUnavailable."""
        _check_id(group_id)
        async with self._changing:
            configs = dict(change(self.overrides(group_id)))
            for name, value in configs.items():
                check_group_config(name, value)
            letters = self._topic(configs.get(DEAD_LETTER_TOPIC, ""))
            if letters is not None and letters.id in self.share_topics(group_id):
                raise own_dead_letter_topic(group_id, letters.name)
            if is_validated_only:
                return
            fact = self._facts.get(group_id, GroupFact({}))
            if not await self._put(group_id, replace(fact, configs=configs)):
                raise MetadataUnavailable(
                    f"the settings of group {group_id!r} were changed meanwhile: try again"
                )

    # --- share groups ------------------------------------------------------------------------

    def share_groups(self) -> list[str]:
        """The ids of all share groups that have begun on a topic, sorted."""
        return sorted(self._topics)

    def share_topics(self, group_id: str) -> tuple[UUID, ...]:
        """The topics on which the share group has begun; some may have been deleted."""
        return self._topics.get(group_id, ())

    async def refresh(self, group_id: str) -> None:
        """Read the group's settings again, before something is refused because of them: another
        broker may just have changed them. Raises MetadataUnavailable."""
        key = group_key(group_id)
        self.apply(key, await self._metadata.get(key))

    async def begin(self, group_id: str, topic_id: UUID, partitions: int = 0) -> int | None:
        """Record that the share group begins on a topic with so many partitions; returns how many
        it had when the group began, None if that is not known. Raises GroupIdInvalid,
        MetadataUnavailable.

        Written once per group and topic, before the group's first record in a journal, so that its
        coordinator knows an empty group although the journals belong to other brokers.
        """
        if topic_id not in self.share_topics(group_id):
            _check_id(group_id)
            counts = {topic_id: partitions} if partitions else {}
            await self._change_topics(group_id, lambda known: (*known, topic_id), counts)
        fact = self._facts.get(group_id)
        return None if fact is None else fact.partitions().get(topic_id)

    async def end(self, group_id: str, topics: Container[UUID] | None = None) -> None:
        """Record that the share group is deleted from these topics, or (None) altogether.

        Raises MetadataUnavailable.
        """
        await self._change_topics(
            group_id,
            lambda known: (
                () if topics is None else tuple(one for one in known if one not in topics)
            ),
        )

    async def forget_topic(self, topic_id: UUID) -> None:
        """The topic was deleted. Raises MetadataUnavailable."""
        for group_id in [name for name, known in self._topics.items() if topic_id in known]:
            await self.end(group_id, {topic_id})

    async def _change_topics(
        self,
        group_id: str,
        change: Callable[[tuple[UUID, ...]], tuple[UUID, ...]],
        partitions: Mapping[UUID, int] = NO_PARTITIONS,
    ) -> None:
        async with self._changing:
            for _ in range(ATTEMPTS_MAX):
                fact = self._facts.get(group_id, GroupFact({}))
                topics = tuple(dict.fromkeys(change(fact.topics())))
                if topics == fact.topics():
                    return
                if await self._put(group_id, fact.with_topics(topics, partitions)):
                    return
        raise MetadataUnavailable(
            f"group {group_id!r} is being changed by other brokers: try again in a moment"
        )

    async def _put(self, group_id: str, fact: GroupFact) -> bool:
        """Store the fact, or delete it if it is empty; False: another broker was faster."""
        key = group_key(group_id)
        version = self._versions.get(group_id, ABSENT)
        is_removed = not (fact.configs or fact.share_topics or fact.unknown)
        try:
            if not is_removed:
                version = await self._metadata.put(key, fact.encode(), version)
            elif version != ABSENT:
                await self._metadata.delete(key, version)
        except VersionConflict:
            self.apply(key, await self._metadata.get(key))
            return False
        self.apply(key, None if is_removed else MetadataEntry(key, fact.encode(), version))
        return True


def _check_id(group_id: str) -> None:
    if not 0 < len(group_id) <= GROUP_ID_LENGTH_MAX:
        raise GroupIdInvalid(
            f"a share group, or one with settings, needs an id of 1 to {GROUP_ID_LENGTH_MAX}"
            " characters"
        )
