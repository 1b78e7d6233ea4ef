"""The topics that clients may read: those that there are, and those that a tenant shares with them.

A shared topic is one more topic in the reader's namespace, with a name and an id of its own, whose
partitions are those of the owner's topic. So all that brokers keep of its readers, such as offsets,
has the readers' names.

Invariants: `Topics` does not know it, so whatever looks up topics there (writes, housekeeping,
ownership) finds no shared one: what may read one asks here. A topic of the reader's own comes
before a shared one of its name, at every broker, whichever was first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.topics.topic import Topic
from headrace.errors import TopicUnknown
from headrace.records.tenant_names import DEFAULT, tenant_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from uuid import UUID

    from headrace.broker.security.topic_sharing import TopicSharing
    from headrace.broker.topics.topics import Topics


class ReadableTopics:
    """See the module. As of `Topics.version`, which counts changes of what is shared, too."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._sharing: TopicSharing | None = None
        self._known: dict[str, Topic] = {}
        """The shared topics that were found, by the reader's key."""

    def follow(self, sharing: TopicSharing) -> None:
        """From now on there are shared topics."""
        self._sharing = sharing
        sharing.on_change(self._changed)

    def _changed(self) -> None:
        self._known.clear()
        self._topics.version += 1
        self._topics.arrivals.look_again(self.find_by_id)

    @property
    def version(self) -> int:
        """Changes with the topics, their settings and owners: what was found before is found
        again."""
        return self._topics.version

    def topics_changed(self, name: str) -> None:
        """There is a topic of this name now, or it was deleted."""
        if self._sharing is not None and self._sharing.is_accepted(name):
            self._sharing.changed()

    @property
    def _has_any(self) -> bool:
        return self._sharing is not None and self._sharing.has_any

    def find(self, name: str) -> Topic | None:
        """The topic of a name, or None."""
        topic = self._topics.by_name.get(name)
        if topic is not None or self._sharing is None or not self._sharing.has_any:
            return topic
        return self._shared(name, self._sharing)

    def _shared(self, key: str, sharing: TopicSharing) -> Topic | None:
        accepted = sharing.accepted(key)
        home = None if accepted is None else self._topics.by_id.get(accepted.source_id)
        if accepted is None or home is None or home.name != accepted.source:
            return None
        known = self._known.get(key)
        if known is None or known.home is not home or known.version != home.version:
            fact = replace(home.fact, name=key, id=accepted.id)
            known = self._known[key] = Topic(fact, home.version, home.partitions, home)
        return known

    def is_shared(self, name: str) -> bool:
        """Whether the topic of this name is one that another tenant shares."""
        topic = self.find(name) if self._has_any else None
        return topic is not None and topic.home is not topic

    def find_by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of an id, or None."""
        topic = self._topics.by_id.get(topic_id)
        if topic is not None or self._sharing is None:
            return topic
        key = self._sharing.key_of(topic_id)
        found = None if key is None else self.find(key)
        return None if found is None or found.id != topic_id else found

    def get(self, name: str) -> Topic:
        """The topic. Raises TopicUnknown."""
        topic = self.find(name)
        return self._topics.get(name) if topic is None else topic

    def get_by_id(self, topic_id: UUID) -> Topic:
        """The topic. Raises TopicIdUnknown."""
        topic = self.find_by_id(topic_id)
        return self._topics.get_by_id(topic_id) if topic is None else topic

    @property
    def ids(self) -> Mapping[str, UUID]:
        """The ids of topics, by name."""
        return _Ids(self) if self._has_any else self._topics.ids

    async def refresh(self, name: str) -> None:
        """Apply what the store holds for one topic, and for what is shared by that name. Raises
        MetadataUnavailable."""
        await self._topics.refresh(name)
        if self._sharing is not None and (source := await self._sharing.refresh(name)):
            await self._topics.refresh(source)

    async def is_reserved(self, name: str) -> bool:
        """Whether a tenant has accepted a topic by this name, also if that is not shared at the
        moment: a consumer that goes on asking for it would create an empty one, which would be the
        one that the tenant sees when the other is shared again. Raises MetadataUnavailable."""
        if self._sharing is None or tenant_of(name) == DEFAULT:
            return False
        if not self._sharing.is_accepted(name):
            await self.refresh(name)  # another broker may have stored that just now
        return self._sharing.is_accepted(name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.all_names())

    def all_names(self) -> Collection[str]:
        """All names."""
        by_name = self._topics.by_name
        if not self._has_any:
            return by_name
        return [*by_name, *(topic.name for topic in self._shared_topics())]

    def all(self) -> list[Topic]:
        """All of them."""
        return [*self._topics.by_name.values(), *self._shared_topics()]

    def _shared_topics(self) -> Iterator[Topic]:
        for name in [] if self._sharing is None else [*self._sharing.keys()]:
            topic = self.find(name)
            if topic is not None and topic.home is not topic:
                yield topic

    def seen_by(self, group_id: str, home: Topic) -> Topic | None:
        """A topic as the tenant of a group that consumes it sees it; None: it is no longer shared
        with that tenant."""
        if self._sharing is None or self.has_group(home, group_id):
            return home
        key = self._sharing.key_in(tenant_of(group_id), home.id)
        found = None if key is None else self.find(key)
        # The tenant may have a topic of its own by this name.
        return None if found is None or found.home.id != home.id else found

    def consumed(self, group_id: str, topic_ids: Iterable[UUID]) -> list[Topic]:
        """Of the topics with whose partitions a group is kept, those that its tenant sees, as it
        sees them; sorted by name."""
        homes = filter(None, map(self._topics.by_id.get, topic_ids))
        seen = (self.seen_by(group_id, home) for home in homes)
        return sorted((one for one in seen if one is not None), key=lambda one: one.name)

    def has_group(self, topic: Topic, group_id: str) -> bool:
        """Whether a group that consumes a topic's partitions consumes them by the topic's name. The
        operators' groups, of no tenant, do so by the name of its owner. Groups of other tenants are
        kept when these may no longer read it."""
        if self._sharing is None or not self._sharing.has_tenants():
            return True
        tenant = tenant_of(group_id)
        return tenant == tenant_of(topic.name) or (tenant == DEFAULT and topic.home is topic)

    def check(self, topic: Topic) -> None:
        """Raise TopicUnknown if it is not shared with its reader any more."""
        if topic.home is not topic and self.find_by_id(topic.id) is None:
            raise TopicUnknown(f"topic {topic.name!r} does not exist")


class _Ids(Mapping[str, "UUID"]):
    """Looked up on demand."""

    def __init__(self, topics: ReadableTopics) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> UUID:
        topic = self._topics.find(name)
        if topic is None:
            raise KeyError(name)
        return topic.id

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics.all_names())

    def __len__(self) -> int:
        return len(self._topics.all_names())
