"""Group settings, and the existing share groups, as stored in the metadata store.

Invariants: the metadata store holds the truth, one fact for each group that has overrides or, as a
share group, has begun on a topic; a change is a compare-and-set. Other brokers' changes arrive
through a MetadataCache. What a share group has consumed is in the journals of its partitions.

Settings are never replaced by defaults in silence. A share group whose fact cannot be decoded is
refused until it can. A broker never deletes a fact that has content: it empties it, and the empty
fact is deleted once every broker has seen it (`followed_facts`). So a fact with settings that
vanishes was deleted by hand, and is reported.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_config import (
    DEAD_LETTER_TOPIC,
    check_group_config,
    own_dead_letter_topic,
    share_config,
    shared_dead_letter_topic,
)
from headrace.broker.coordinators.kept_state import Kept
from headrace.broker.security.tenant_shares import user_here
from headrace.broker.topics.overrides import accepts_dead_letters
from headrace.errors import (
    ConfigInvalid,
    DataCorrupt,
    FormatUnsupported,
    GroupIdInvalid,
    MetadataUnavailable,
    PolicyViolation,
    VersionConflict,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import GROUPS
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.group_facts import GroupFact, group_key, group_of_key
from headrace.metadata.store import ABSENT, MetadataEntry
from headrace.records.tenant_names import name_in, tenant_of
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Mapping
    from uuid import UUID

    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.config import ShareConfig
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)

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
        self,
        metadata: MetadataStore,
        topics: Topics | None = None,
        check_new: Callable[[str], None] | None = None,
    ) -> None:
        """`topics`: those that may be dead letter topics. `check_new` raises the error that refuses
        a new share group."""
        self._known_topics = topics
        self._metadata = metadata
        self.facts = FollowedFacts(metadata, GROUPS, "settings of groups", self.apply)
        self._facts: dict[str, GroupFact] = {}
        self._topics: dict[str, tuple[UUID, ...]] = {}
        self._versions: dict[str, int] = {}
        self._configs: dict[str, ShareConfig] = {}
        self._damaged: dict[str, str] = {}
        """Groups whose fact cannot be decoded, with the reason."""
        self.lost_facts: dict[str, str] = {}
        """The keys of settings that vanished while this broker knew them, with the next step."""
        self._default = share_config({})
        self._changing = FairLock()
        self._check_new = check_new
        self._begun: Kept | None = None

    def bound(self, most: Callable[[], int], now_ns: Callable[[], int]) -> None:
        """Let so many share groups begin, and users leave room for others."""
        self._begun = Kept("share groups", most, lambda: [self._topics], now_ns)

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a group's key. Raises DataCorrupt, FormatUnsupported."""
        group_id = group_of_key(key)
        self._configs.pop(group_id, None)
        self._damaged.pop(group_id, None)
        try:
            fact = None if entry is None else decode_fact(GroupFact, entry)
        except (DataCorrupt, FormatUnsupported) as error:
            self._damaged[group_id] = str(error)
            raise
        self._note_lost(key, group_id, fact)
        self.facts.note(key, entry, is_empty=fact is not None and fact.is_empty)
        topics = () if fact is None else fact.topics()
        if topics:
            self._topics[group_id] = topics
            if self._begun is not None and not self._begun.knows(group_id):
                self._begun.note(group_id)  # it may have begun at another broker
        else:
            self._topics.pop(group_id, None)
        if entry is None or fact is None:
            self._facts.pop(group_id, None)
            self._versions.pop(group_id, None)
        else:
            self._facts[group_id] = fact
            self._versions[group_id] = entry.version

    def _note_lost(self, key: str, group_id: str, fact: GroupFact | None) -> None:
        if fact is not None:
            self.lost_facts.pop(key, None)
            return
        known = self._facts.get(group_id)
        if known is None or not known.configs:
            return  # topics alone are recorded again when the group receives
        settings = ", ".join(f"{name}={value}" for name, value in sorted(known.configs.items()))
        self.lost_facts[key] = (
            f"the settings of group {group_id!r} were deleted from the metadata store by hand: the"
            f" group has the defaults. Set them again ({settings}), or reset one of them if the"
            " defaults are right"
        )
        log.error("%s: %s", key, self.lost_facts[key])

    def check_readable(self, group_id: str) -> None:
        """Raises MetadataUnavailable if the group's fact cannot be decoded: with the defaults it
        might lose its key order, or its dead letters."""
        reason = self._damaged.get(group_id)
        if reason is not None:
            raise MetadataUnavailable(
                f"the settings of group {group_id!r} cannot be decoded, so it is not served:"
                f" restore or delete {group_key(group_id)} in the metadata store, then set what is"
                f" missing; no restart is needed ({reason})",
                group=group_id,
            )

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """The overrides of the group."""
        fact = self._facts.get(group_id)
        return NO_OVERRIDES if fact is None else fact.configs

    def configured(self) -> list[str]:
        """The groups that have overrides, sorted."""
        return sorted(group_id for group_id, fact in self._facts.items() if fact.configs)

    def values(self, name: str) -> set[str]:
        """The values that any group has set for this setting."""
        return {fact.configs[name] for fact in self._facts.values() if name in fact.configs}

    def share_config(self, group_id: str) -> ShareConfig:
        """The group's settings for its share partitions. Raises MetadataUnavailable if they cannot
        be decoded."""
        self.check_readable(group_id)
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
            for _ in range(ATTEMPTS_MAX):
                self.check_readable(group_id)
                configs = dict(change(self.overrides(group_id)))
                for name, value in configs.items():
                    check_group_config(name, value)
                named = configs.get(DEAD_LETTER_TOPIC, "")
                if named and tenant_of(named) != tenant_of(group_id):
                    raise ConfigInvalid(
                        f"{DEAD_LETTER_TOPIC} names a topic of another tenant than the group's:"
                        " name one of the same tenant; nothing was changed"
                    )
                await self._check_letters(group_id, named)
                if is_validated_only:
                    return
                fact = self._facts.get(group_id, GroupFact({}))
                if await self._put(group_id, replace(fact, configs=configs)):
                    return
        raise _contended(group_id)

    async def _check_letters(self, group_id: str, name: str) -> None:
        topics = self._known_topics
        if topics is None or not name:
            return
        letters = topics.by_name.get(name)
        if letters is None:
            if await topics.readable.is_reserved(name):
                raise shared_dead_letter_topic(name)
            return
        if letters.id in self.share_topics(group_id):
            raise own_dead_letter_topic(group_id, letters.name)
        if not accepts_dead_letters(letters.fact.configs):
            raise ConfigInvalid(
                f"{letters.name} cannot be a dead letter topic: its setting"
                " errors.deadletterqueue.group.enable is false; set it to true, or name another"
                " topic"
            )

    # --- share groups ------------------------------------------------------------------------

    def share_groups(self) -> list[str]:
        """The ids of all share groups that have begun on a topic, sorted."""
        return sorted(self._topics)

    def share_topics(self, group_id: str) -> tuple[UUID, ...]:
        """The topics on which the share group has begun; some may have been deleted."""
        return self._topics.get(group_id, ())

    async def refresh(self, group_id: str) -> None:
        """Read the group's settings again: another broker has changed them, or may have where
        something is about to be refused because of them. Raises MetadataUnavailable."""
        await self._read_again(group_id)
        self.check_readable(group_id)

    async def _read_again(self, group_id: str) -> None:
        key = group_key(group_id)
        try:
            async with self.facts.turns.of(key):
                self.apply(key, await self._metadata.get(key))
        except (DataCorrupt, FormatUnsupported) as error:
            log.debug("%s", error)  # `check_readable` refuses the group

    async def begin(self, group_id: str, topic_id: UUID, partitions: int = 0) -> int | None:
        """Record that the share group begins on a topic (of a shared one, its owner's) with so many
        partitions; returns how many it had when the group began, None if that is not known. A new
        group counts for the user whose request this is. Raises GroupIdInvalid, PolicyViolation,
        MetadataUnavailable.

        Written once per group and topic, before the group's first record in a journal, so that its
        coordinator knows an empty group although the journals belong to other brokers.
        """
        if topic_id not in self.share_topics(group_id):
            _check_id(group_id)
            async with self._making(group_id):
                counts = {topic_id: partitions} if partitions else {}
                await self._change_topics(group_id, lambda known: (*known, topic_id), counts)
        fact = self._facts.get(group_id)
        return None if fact is None else fact.partitions().get(topic_id)

    @asynccontextmanager
    async def _making(self, group_id: str) -> AsyncIterator[None]:
        """Take room for a share group, if it is new. Raises PolicyViolation."""
        is_new = group_id not in self._topics
        if is_new and self._check_new is not None:
            self._check_new(group_id)
        if not is_new or self._begun is None:
            yield
            return
        with self._begun.making(group_id):
            if excess := await self._begun.take(group_id, user_here()):
                raise PolicyViolation(
                    f"{excess} (headrace.groups.max): nothing was changed; delete share groups, or"
                    " raise the setting"
                )
            yield

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
                self.check_readable(group_id)
                fact = self._facts.get(group_id, GroupFact({}))
                topics = tuple(dict.fromkeys(change(fact.topics())))
                if topics == fact.topics():
                    return
                if await self._put(group_id, fact.with_topics(topics, partitions)):
                    return
        raise _contended(group_id)

    async def _put(self, group_id: str, fact: GroupFact) -> bool:
        """Store the fact; False: another broker was faster."""
        key = group_key(group_id)
        version = self._versions.get(group_id, ABSENT)
        if fact.is_empty and version == ABSENT and key not in self.lost_facts:
            return True
        try:
            async with self.facts.turns.of(key):
                version = await self._metadata.put(key, fact.encode(), version)
                self.apply(key, MetadataEntry(key, fact.encode(), version))
        except VersionConflict:
            await self._read_again(group_id)
            return False
        return True


def _contended(group_id: str) -> MetadataUnavailable:
    return MetadataUnavailable(
        f"group {group_id!r} is being changed by other brokers: try again in a moment"
    )


def _check_id(group_id: str) -> None:
    if not 0 < len(name_in(group_id)) <= GROUP_ID_LENGTH_MAX:
        raise GroupIdInvalid(
            f"a share group, or one with settings, needs an id of 1 to {GROUP_ID_LENGTH_MAX}"
            " characters"
        )
