"""The topics that a tenant shares with another one, which reads them by names of its own.

Two halves have to be there: the owner shares a topic with a reader, and the reader accepts it by a
name. So neither makes names in the other's namespace, nor learns whether the other exists. For a
topic of the default tenant, an operator's acceptance is both.

Invariants: knows keys and ids, not topics. Both halves name the id of the topic, so a topic that is
created later with its name is not shared. Every broker follows the facts in the metadata
store; one that cannot be read shares nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.broker.security.authorizer import Operation
from headrace.errors import DataCorrupt, FormatUnsupported, PolicyViolation, TopicExists
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.tenant_facts import (
    TOPIC_SHARES,
    AcceptedFact,
    SharedFact,
    TopicSharesFact,
    topic_shares_key,
)
from headrace.records.tenant_names import CLOSE, DEFAULT, name_in, prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from headrace.metadata.store import MetadataEntry, MetadataStore

SHARES_MAX: Final = 1_000
"""That a tenant gives, and that it has accepted: they are one fact."""
OF_SHARED: Final = sum(
    1 << one
    for one in (
        *(Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
        Operation.CREATE,  # it exists: that is what a creation is answered
    )
)
"""As bits, what can be done with a topic that another tenant shares."""
_NAMED: Final = rf"(?<![\w.{CLOSE}-]){{}}(?=(?:-\d+)?\.?(?:[^\w.-]|$))"
"""A topic of the default tenant in a text, perhaps with a partition's number. What is a part of
another name, or in a tenant's key, is none."""
FACT_BYTES_MAX: Final = 900_000
"""A ZooKeeper node has at most 1 MB."""


class TopicSharing:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        exists: Callable[[str], bool],
        has_tenants: Callable[[], bool],
    ) -> None:
        """`exists`: whether there is a tenant; `has_tenants`: whether there are any, or were."""
        self.has_tenants = has_tenants
        self._metadata = metadata
        self._exists = exists
        self.facts = FollowedFacts(metadata, TOPIC_SHARES, "shared topics", self.apply, _tenant)
        self._facts: dict[str, TopicSharesFact] = {}
        """By tenant."""
        self._shared: dict[str, frozenset[tuple[UUID, str]]] = {}
        """By owner: (topic, reader)."""
        self._accepted: dict[str, AcceptedFact] = {}
        """By the reader's key."""
        self._keys: dict[UUID, str] = {}
        """The reader's keys, by the ids that readers have."""
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """What keys stand for has changed."""
        for listener in self._listeners:
            listener()

    def tenants_changed(self) -> None:
        """What a tenant that was deleted shared or read is shared no longer."""
        if self.has_any:
            self.changed()

    # --- look up -----------------------------------------------------------------------------

    @property
    def has_any(self) -> bool:
        """Whether any topic was accepted."""
        return bool(self._accepted)

    def accepted(self, key: str) -> AcceptedFact | None:
        """What a reader's key stands for, if it is shared with that reader."""
        one = self._accepted.get(key)
        return one if one is not None and self._is_shared(tenant_of(key), one) else None

    def _is_shared(self, reader: str, one: AcceptedFact) -> bool:
        owner = tenant_of(one.source)
        if not self._exists(reader):
            return False
        return owner == DEFAULT or self.is_shared(owner, one.source_id, reader)

    def is_shared(self, owner: str, topic_id: UUID, reader: str) -> bool:
        """Whether a tenant shares a topic of its own."""
        return self._exists(owner) and (topic_id, reader) in self._shared.get(owner, ())

    def key_of(self, topic_id: UUID) -> str | None:
        """The reader's key of the topic with an id that readers have."""
        return self._keys.get(topic_id)

    def key_in(self, tenant: str, topic_id: UUID) -> str | None:
        """The key by which a tenant has accepted a topic."""
        names = (one.name for one in self.read(tenant) if one.source_id == topic_id)
        name = next(names, None)
        return None if name is None else prefix_of(tenant) + name

    def is_accepted(self, key: str) -> bool:
        """Whether a reader has such a name, shared or not."""
        return key in self._accepted

    def keys(self) -> Iterator[str]:
        """All that readers have accepted."""
        return iter(self._accepted)

    def shown(self, text: str, tenant: str) -> str:
        """A text for clients of a tenant, in which there may be keys of topics that it has
        accepted: with its own names for them."""
        for one in sorted(self.read(tenant), key=lambda one: -len(one.source)):
            if one.source in text:
                named = "{}" if tenant_of(one.source) else _NAMED
                text = re.sub(named.format(re.escape(one.source)), one.name, text)
        return text

    def marks(self, tenant: str) -> set[str]:
        """Of which each text has one in which there is a key of a topic that a tenant has
        accepted."""
        return {prefix_of(tenant_of(one.source)) or one.source for one in self.read(tenant)}

    def given(self, tenant: str) -> Sequence[SharedFact]:
        """What a tenant shares."""
        fact = self._facts.get(tenant)
        return () if fact is None else fact.shared

    def read(self, tenant: str) -> Sequence[AcceptedFact]:
        """What a tenant has accepted."""
        fact = self._facts.get(tenant)
        return () if fact is None else fact.accepted

    def tenants(self) -> Sequence[str]:
        """The tenants that share or have accepted something, sorted."""
        return sorted(self._facts)

    # --- stored state ------------------------------------------------------------------------

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the fact stored under a key. Raises DataCorrupt, FormatUnsupported."""
        tenant, fact, is_empty = _tenant(key), TopicSharesFact([], []), False
        try:
            if entry is not None:
                fact = decode_fact(TopicSharesFact, entry)
                is_empty = fact.is_empty
        except (DataCorrupt, FormatUnsupported):
            fact = TopicSharesFact([], [])
            raise
        finally:
            self.facts.note(key, entry, is_empty=is_empty)
            self._put(tenant, fact)

    def _put(self, tenant: str, fact: TopicSharesFact) -> None:
        before = self._facts.pop(tenant, None)
        if fact.shared or fact.accepted:
            self._facts[tenant] = fact
        prefix = prefix_of(tenant)
        for gone in () if before is None else before.accepted:
            self._accepted.pop(prefix + gone.name, None)
            self._keys.pop(gone.id, None)
        for one in fact.accepted:
            self._accepted[prefix + one.name] = one
            self._keys[one.id] = prefix + one.name
        self._shared.pop(tenant, None)
        if fact.shared:
            self._shared[tenant] = frozenset((one.id, one.reader) for one in fact.shared)
        self.changed()

    async def refresh(self, key: str) -> str:
        """Apply what the store holds about a reader's key; returns the key of the topic that it
        was accepted for, empty if it was not. Raises MetadataUnavailable."""
        with suppress(DataCorrupt, FormatUnsupported):  # it shares nothing
            await self.update(tenant_of(key))
        one = self._accepted.get(key)
        if one is not None:
            with suppress(DataCorrupt, FormatUnsupported):
                await self.update(tenant_of(one.source))
        return "" if one is None else one.source

    async def update(self, tenant: str) -> None:
        """Apply what the store holds of a tenant. Raises MetadataUnavailable."""
        if tenant == DEFAULT:
            return
        key = topic_shares_key(tenant)
        async with self.facts.turns.of(key):
            self.apply(key, await self._metadata.get(key))

    # --- changes -----------------------------------------------------------------------------

    async def share(self, topic: str, topic_id: UUID, reader: str) -> None:
        """Share a topic, named by its key, with a tenant, whether there is one or not.

        Raises PolicyViolation, MetadataUnavailable.
        """
        added = SharedFact(name_in(topic), topic_id, reader)

        def shared(before: TopicSharesFact) -> TopicSharesFact:
            # One of an earlier topic of this name ends.
            return replace(before, shared=[*_without(before, added.topic, reader), added])

        await self._change(tenant_of(topic), shared)

    async def unshare(self, topic: str, reader: str) -> None:
        """Share it no longer. Raises MetadataUnavailable."""
        name = name_in(topic)
        await self._change(
            tenant_of(topic), lambda before: replace(before, shared=_without(before, name, reader))
        )

    async def accept(self, key: str, accepted: AcceptedFact) -> None:
        """Have a key stand for a topic. Raises TopicExists if another one does, PolicyViolation,
        MetadataUnavailable."""

        def changed(before: TopicSharesFact) -> TopicSharesFact:
            for one in before.accepted:  # a group's state is kept with the topic, for one name
                if one.source_id == accepted.source_id and one.name != accepted.name:
                    raise TopicExists(
                        f"the tenant reads this topic by the name {one.name!r}: leave that first;"
                        " nothing was changed"
                    )
            return replace(before, accepted=[*_but(before, accepted.name), accepted])

        await self._change(tenant_of(key), changed)

    async def leave(self, key: str) -> None:
        """Have a key stand for nothing. Raises MetadataUnavailable."""
        name = name_in(key)
        await self._change(
            tenant_of(key), lambda before: replace(before, accepted=_but(before, name))
        )

    async def forget(self, tenant: str) -> None:
        """The tenant was deleted: it shares and reads nothing any more, also if one of
        that name is created. Raises MetadataUnavailable."""
        await self._change(tenant, lambda before: replace(before, shared=[], accepted=[]))

    async def forget_reader(self, tenant: str) -> None:
        """The tenant was deleted: nothing is shared with it any more, also with another
        one that is created with its name. Raises MetadataUnavailable."""

        def others(before: TopicSharesFact) -> TopicSharesFact:
            return replace(before, shared=[one for one in before.shared if one.reader != tenant])

        for entry in await self._metadata.list(TOPIC_SHARES):  # also what others stored just now
            with suppress(DataCorrupt, FormatUnsupported):  # it shares nothing
                await self._change(_tenant(entry.key), others)

    async def _change(
        self, tenant: str, change: Callable[[TopicSharesFact], TopicSharesFact]
    ) -> None:
        def changed(entry: MetadataEntry | None) -> bytes | None:
            empty = TopicSharesFact([], [])
            before = empty if entry is None else decode_fact(TopicSharesFact, entry)
            after = change(before)
            if after == before:
                return None
            value = after.encode()
            is_more = len(after.shared) + len(after.accepted) > len(before.shared) + len(
                before.accepted
            )
            counts = len(after.shared), len(after.accepted)
            if is_more and (max(counts) > SHARES_MAX or len(value) > FACT_BYTES_MAX):
                raise PolicyViolation(
                    f"a tenant shares at most {SHARES_MAX} topics, and reads as many of others: end"
                    " some first; nothing was changed"
                )
            return value

        await self.facts.change(topic_shares_key(tenant), changed)


def _tenant(key: str) -> str:
    return key.removeprefix(TOPIC_SHARES)


def _without(fact: TopicSharesFact, topic: str, reader: str) -> list[SharedFact]:
    return [one for one in fact.shared if (one.topic, one.reader) != (topic, reader)]


def _but(fact: TopicSharesFact, name: str) -> list[AcceptedFact]:
    return [one for one in fact.accepted if one.name != name]
