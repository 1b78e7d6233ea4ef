"""Metadata of tenants: one fact for each, with its principals and limits, one for changes of its
topics, and one for topics that it shares with others or reads of others.

Do not change: stored. Brokers of earlier versions ignore these keys and preserve them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

if TYPE_CHECKING:
    from uuid import UUID

TENANTS = "/tenants/"
TENANT_TOPICS = "/tenant-topics/"
TOPIC_SHARES = "/topic-shares/"
ACTIVE, DELETED = "active", "deleted"
"""A tenant that was deleted keeps its fact, so that its version still orders changes."""


def tenant_key(tenant: str) -> str:
    """The key of a tenant's fact."""
    return TENANTS + tenant


def tenant_topics_key(tenant: str) -> str:
    """The key of the fact by which changes of a tenant's topics are ordered."""
    return TENANT_TOPICS + tenant


def topic_shares_key(tenant: str) -> str:
    """The key of the fact with the topics that a tenant shares and reads."""
    return TOPIC_SHARES + tenant


@dataclass(slots=True)
class TenantTopicsFact(StoredFact):
    """Its version counts the topics and partitions that were created while limits applied."""

    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> TenantTopicsFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        return cls(FactReader.parse("topics of a tenant", value).rest())


@dataclass(slots=True)
class TenantPrincipal(StoredFact):
    """A principal of a tenant, such as `User:alice`."""

    principal: str
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class TenantFact(StoredFact):
    """One tenant."""

    state: str
    principals: list[TenantPrincipal]
    limits: dict[str, str] = field(default_factory=dict)
    """Numbers as text, by what they limit: see `coordination/quotas/tenant_limits`."""
    when_full: str | None = None
    """What happens when it stores all that it may; None: as by default."""
    access: str | None = None
    """What its principals may do with its names: `tenants.ACCESS`; None: everything."""
    audit_topic: str | None = None
    """Its name within the tenant; None: the tenant has no audit log of its own."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> TenantFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("tenant", value)
        state = reader.text("state")
        principals = [
            TenantPrincipal(one.text("principal"), one.rest())
            for one in reader.objects("principals", "principal of a tenant")
        ]
        limits = reader.texts_or_empty("limits")
        try:
            _ = [float(value) for value in limits.values()]
        except ValueError:
            raise reader.corrupt(f"has invalid limits {limits!r}") from None
        when_full, access = reader.text_or_none("when_full"), reader.text_or_none("access")
        audit_topic = reader.text_or_none("audit_topic")
        return cls(state, principals, limits, when_full, access, audit_topic, reader.rest())


@dataclass(slots=True)
class SharedFact(StoredFact):
    """A topic of the tenant that another one may read."""

    topic: str
    """Its name within the tenant."""
    id: UUID
    """A topic that is created later with this name is another one."""
    reader: str
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class AcceptedFact(StoredFact):
    """A topic of another tenant that the tenant reads by a name of its own."""

    name: str
    """Within the tenant."""
    source: str
    """The key of the topic."""
    source_id: UUID
    id: UUID
    """By which the tenant's clients know the topic."""
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class TopicSharesFact(StoredFact):
    """What a tenant shares, and what it reads of others."""

    shared: list[SharedFact]
    accepted: list[AcceptedFact]
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> TopicSharesFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("shared topics of a tenant", value)
        shared = [
            SharedFact(one.text("topic"), one.uuid("id"), one.text("reader"), one.rest())
            for one in reader.objects("shared", "topic that is shared")
        ]
        accepted = [
            AcceptedFact(
                one.text("name"),
                one.text("source"),
                one.uuid("source_id"),
                one.uuid("id"),
                one.rest(),
            )
            for one in reader.objects("accepted", "topic of another tenant")
        ]
        return cls(shared, accepted, reader.rest())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with the fact."""
        return not self.shared and not self.accepted and not self.unknown
