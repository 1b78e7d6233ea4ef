"""How many topics and partitions a tenant may have, whichever brokers create them at once.

Invariants: what a tenant has is counted in the store: a deletion has nothing to give back. What is
created is stored in one step with a fact of the tenant at the version that it had before the count.
So of brokers that count at once only one stores, and the others count again. While the fact has the
version that it got from this broker, the tenant has no more than was counted then, or is known
here: the store is counted again only where that would be too much. So a topic of a tenant with
thousands costs no more to create, which would delay all other clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.topics.topic_writes import put_first
from headrace.coordination.quotas.tenant_limits import PARTITIONS, TOPICS
from headrace.errors import MetadataUnavailable, PolicyViolation, VersionConflict
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import TopicFact, topic_key, topic_of_key
from headrace.metadata.store import ABSENT, MultiOperation
from headrace.metadata.tenant_facts import TenantTopicsFact, tenant_topics_key
from headrace.records.tenant_names import prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.broker.topics.topic import Topic
    from headrace.metadata.store import MetadataStore

ATTEMPTS_MAX: Final = 20


def _no_limits(_tenant: str) -> Mapping[str, float]:
    return {}


def held_by(tenant: str, topics: Iterable[TopicFact]) -> dict[str, int]:
    """How many topics and partitions a tenant has."""
    return _sizes(_own(tenant, topics))


def _own(tenant: str, topics: Iterable[TopicFact]) -> dict[str, int]:
    """The numbers of partitions of a tenant's topics, by name."""
    prefix = prefix_of(tenant)  # looked at alone: there may be many topics of others
    return {
        one.name: one.partition_count
        for one in topics
        if (one.name.startswith(prefix) if prefix else tenant_of(one.name) == tenant)
    }


def _sizes(own: Mapping[str, int]) -> dict[str, int]:
    return {TOPICS: len(own), PARTITIONS: sum(own.values())}


class Place(NamedTuple):
    """Where a tenant has room for what is created."""

    step: MultiOperation
    """Stored together with it."""
    held: Mapping[str, int]
    """What the tenant has then, or less."""


class TenantRoom:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        limits_of: Callable[[str], Mapping[str, float]] | None,
        known: Mapping[str, Topic],
    ) -> None:
        """`limits_of`: of a tenant; None: there are no tenants. `known`: the topics that this
        broker knows, by name."""
        self._metadata = metadata
        self._limits_of = limits_of or _no_limits
        self._known = known
        self._counted: dict[str, tuple[int, Mapping[str, int]]] = {}
        """By tenant: the version of its fact, and what it has at most with this version."""

    async def put(self, step: MultiOperation, parts: Sequence[MultiOperation], added: int) -> int:
        """Write the fact of a topic that gets so many partitions more, after or together with the
        facts of its partitions; again, if other topics of its tenant were faster. Returns its
        version.

        Raises PolicyViolation, VersionConflict, MetadataUnavailable.
        """
        name = topic_of_key(step.key)
        place = await self.place(name, added)  # before anything is stored
        last = [step, *await put_first(self._metadata, parts)]
        for _ in range(ATTEMPTS_MAX):
            try:
                versions = await self._metadata.multi(
                    last if place is None else [*last, place.step]
                )
            except VersionConflict:
                entry = await self._metadata.get(step.key)
                if step.expected_version != (ABSENT if entry is None else entry.version):
                    raise  # the topic itself was changed
                before, place = place, await self.place(name, added)
                if before is None or place is None or before.step == place.step:
                    raise
                continue
            if place is not None:
                self._counted[tenant_of(name)] = versions[-1], place.held
            return versions[0]
        raise MetadataUnavailable(
            f"other topics of the tenant {tenant_of(name)} are being created all the time: nothing"
            " was changed by this request, try again"
        )

    async def place(self, name: str, added: int) -> Place | None:
        """What allows a topic so many partitions more; None: no limit applies. Raises
        PolicyViolation if its tenant may not have them."""
        if added <= 0:
            return None  # what is there may go, also once its tenant has gone
        tenant = tenant_of(name)
        limits = self._limits_of(tenant)
        if TOPICS not in limits and PARTITIONS not in limits:
            return None
        key = tenant_topics_key(tenant)
        entry = await self._metadata.get(key)  # before the count
        step = MultiOperation(key, TenantTopicsFact().encode(), ABSENT)
        if entry is not None:
            step = MultiOperation(key, entry.value, entry.version)
            version, counted = self._counted.get(tenant, (ABSENT, {}))
            if version == entry.version:
                known = (one.fact for one in self._known.values())
                held = _grown(name, added, known, counted)
                if not _excess(held, limits):
                    return Place(step, held)
        listed = await self._metadata.list(topic_key(prefix_of(tenant)))
        facts = [decode_fact(TopicFact, one) for one in listed]
        held = _grown(name, added, [one for one in facts if not one.is_deleted])
        if excess := _excess(held, limits):
            raise PolicyViolation(
                f"the tenant would have {excess}: delete some, or have the limit raised"
                " (headrace tenant set --limit); nothing was changed"
            )
        return Place(step, held)


def _grown(
    name: str, added: int, topics: Iterable[TopicFact], least: Mapping[str, int] | None = None
) -> dict[str, int]:
    """What a tenant with these topics, or `least`, has once a topic has so many partitions more."""
    own = _own(tenant_of(name), topics)
    held = _sizes(own)
    if least:
        held = {what: max(count, least[what]) for what, count in held.items()}
    held[TOPICS] += name not in own
    held[PARTITIONS] += added
    return held


def _excess(held: Mapping[str, int], limits: Mapping[str, float]) -> str:
    """Which limit is exceeded, in words; "": none."""
    for what, count in held.items():
        limit = limits.get(what)
        if limit is not None and count > limit:
            return f"{count} {what}, and may have {limit:.0f}"
    return ""
