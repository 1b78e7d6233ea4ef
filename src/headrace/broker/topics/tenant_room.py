"""How many topics and partitions a tenant may have, whichever brokers create them at once.

Invariants: what a tenant has is counted in the store, and kept nowhere: a deletion has nothing to
give back. What is created is stored in one step with a fact of the tenant at the version that it
had before the count. So of brokers that count at once only one stores, and the others count again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.topics.topic_writes import put_topic
from headrace.coordination.quotas.tenant_limits import PARTITIONS, TOPICS
from headrace.errors import MetadataUnavailable, PolicyViolation, VersionConflict
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import TopicFact, topic_key, topic_of_key
from headrace.metadata.store import ABSENT, MultiOperation
from headrace.metadata.tenant_facts import TenantTopicsFact, tenant_topics_key
from headrace.records.tenant_names import prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.metadata.store import MetadataStore

ATTEMPTS_MAX: Final = 20


def _no_limits(_tenant: str) -> Mapping[str, float]:
    return {}


def held_by(tenant: str, topics: Iterable[TopicFact]) -> dict[str, int]:
    """How many topics and partitions a tenant has."""
    own = [one.partition_count for one in topics if tenant_of(one.name) == tenant]
    return {TOPICS: len(own), PARTITIONS: sum(own)}


class TenantRoom:
    """See the module."""

    def __init__(
        self, metadata: MetadataStore, limits_of: Callable[[str], Mapping[str, float]] | None
    ) -> None:
        """`limits_of`: of a tenant; None: there are no tenants."""
        self._metadata = metadata
        self._limits_of = limits_of or _no_limits

    async def put(self, step: MultiOperation, parts: Sequence[MultiOperation], added: int) -> int:
        """Write the fact of a topic that gets so many partitions more, as `put_topic`; again, if
        other topics of its tenant were faster. Returns its version.

        Raises PolicyViolation, VersionConflict, MetadataUnavailable.
        """
        name = topic_of_key(step.key)
        steps = await self.steps(name, added)
        for _ in range(ATTEMPTS_MAX):
            try:
                return await put_topic(self._metadata, step, [*steps, *parts])
            except VersionConflict:
                before, steps = steps, await self.steps(name, added)
                if steps == before:  # the topic itself was changed
                    raise
        raise MetadataUnavailable(
            f"other topics of the tenant {tenant_of(name)} are being created all the time: nothing"
            " was changed by this request, try again"
        )

    async def steps(self, name: str, added: int) -> list[MultiOperation]:
        """What has to be stored together with a topic that gets so many partitions more; nothing
        if no limit applies. Raises PolicyViolation if the tenant may not have them."""
        tenant = tenant_of(name)
        limits = self._limits_of(tenant)
        if added <= 0 or (TOPICS not in limits and PARTITIONS not in limits):
            return []
        key = tenant_topics_key(tenant)
        entry = await self._metadata.get(key)  # before the count
        listed = await self._metadata.list(topic_key(prefix_of(tenant)))
        facts = [decode_fact(TopicFact, one) for one in listed]
        stored = {one.name: one for one in facts if not one.is_deleted}
        wanted = held_by(tenant, stored.values())
        wanted[TOPICS] += name not in stored
        wanted[PARTITIONS] += added
        for what, count in wanted.items():
            limit = limits.get(what)
            if limit is not None and count > limit:
                raise PolicyViolation(
                    f"the tenant would have {count} {what}, and may have {limit:.0f}: delete some,"
                    " or have the limit raised (headrace tenant set --limit); nothing was changed"
                )
        if entry is None:
            return [MultiOperation(key, TenantTopicsFact().encode(), ABSENT)]
        return [MultiOperation(key, entry.value, entry.version)]
