"""Topics that tenants share with each other, for every face: shared, accepted, ended and listed.

Invariants: a client of a tenant learns nothing here but what it has done itself, and of other
tenants' topics those that are shared with its own: all others are answered alike, whether they
exist or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenant_ownership import TENANT_NAME
from headrace.errors import (
    RequestInvalid,
    SecurityDisabled,
    TopicExists,
    TopicNameInvalid,
    TopicUnknown,
)
from headrace.metadata.followed_facts import SHARED_TOPICS
from headrace.metadata.tenant_facts import AcceptedFact
from headrace.records.identifiers import INTERNAL_TOPICS, is_topic_name
from headrace.records.tenant_names import DEFAULT, name_in, prefix_of, tenant_of, written

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from headrace.broker.security.topic_sharing import TopicSharing
    from headrace.broker.services.cluster import Cluster
    from headrace.broker.services.services import Services

_NOTHING: Final = "nothing was changed"


class TopicShares:
    """See the module."""

    def __init__(self, services: Services) -> None:
        """Raises SecurityDisabled if there are no tenants on this cluster."""
        if services.access is None:
            raise SecurityDisabled("no authorizer is configured: there are no tenants")
        self._tenants = services.access.tenants
        self.sharing: TopicSharing = services.access.sharing
        self._topics = services.topics
        self._cluster: Cluster = services.cluster

    # --- the owner ---------------------------------------------------------------------------

    async def share(self, topic: str, reader: str, *, is_dry_run: bool = False) -> None:
        """Share a topic, named by its key, with a tenant. Whether there is one is not said.

        Raises TopicUnknown, RequestInvalid, PolicyViolation, MetadataUnavailable.
        """
        owner = tenant_of(topic)
        if TENANT_NAME.fullmatch(reader) is None or reader == owner:
            raise RequestInvalid(f"{reader[:60]!r} is not the name of another tenant; {_NOTHING}")
        if owner == DEFAULT:
            raise RequestInvalid(
                f"{topic} is a topic of no tenant: operators have a tenant accept it, and need not"
                f" share it; {_NOTHING}"
            )
        self._check_known()
        found = self._topics.get(topic)
        if not is_dry_run:
            await self.sharing.share(topic, found.id, reader)

    async def unshare(self, topic: str, reader: str, *, is_dry_run: bool = False) -> bool:
        """Share it no longer; returns whether it was. Raises MetadataUnavailable."""
        await self.sharing.update(tenant_of(topic))  # another broker may have stored it just now
        given = self.sharing.given(tenant_of(topic))
        was = any((one.topic, one.reader) == (name_in(topic), reader) for one in given)
        if not is_dry_run:
            await self.sharing.unshare(topic, reader)
        return was

    # --- the reader --------------------------------------------------------------------------

    async def accept(
        self, name: str, source: str, *, is_operator: bool, is_dry_run: bool = False
    ) -> None:
        """Have a name of a tenant, given by its key, stand for another one's topic.

        Raises TopicUnknown, TopicExists, TopicNameInvalid, RequestInvalid, PolicyViolation,
        MetadataUnavailable.
        """
        reader, own = tenant_of(name), name_in(name)
        if reader == DEFAULT:
            raise RequestInvalid(
                f"{own!r} is not the name of a tenant's topic: write the tenant before it, as in"
                f" beta/orders, because topics are shared with tenants only; {_NOTHING}"
            )
        if not is_topic_name(own) or own in INTERNAL_TOPICS:
            raise TopicNameInvalid(f"{own[:249]!r} is not the name of a topic; {_NOTHING}")
        self._check_known()
        topic_id = await self._shared_id(reader, source, is_operator=is_operator)
        await self.sharing.update(reader)
        before = self.sharing.accepted(name)
        is_same = before is not None and (before.source, before.source_id) == (source, topic_id)
        if is_same and self._topics.find(name) is None:
            return
        if self._topics.readable.find(name) is not None:
            raise TopicExists(f"topic {name!r} already exists; {_NOTHING}")
        if not is_dry_run:
            accepted = AcceptedFact(own, source, topic_id, self._topics.new_id())
            await self.sharing.accept(name, accepted)

    async def _shared_id(self, reader: str, source: str, *, is_operator: bool) -> UUID:
        """The id of a topic that the reader may accept. Raises TopicUnknown, MetadataUnavailable;
        CredentialUnknown if there is no such reader."""
        owner = tenant_of(source)
        self._tenants.principals(reader)
        await self.sharing.update(owner)
        may_have = is_operator and source not in INTERNAL_TOPICS
        if owner != DEFAULT:
            may_have = any(
                (one.topic, one.reader) == (name_in(source), reader)
                and self.sharing.is_shared(owner, one.id, reader)
                for one in self.sharing.given(owner)
            )
        if may_have:
            await self._topics.look_up(source)
        topic = self._topics.find(source) if may_have else None
        if topic is None or (owner and not self.sharing.is_shared(owner, topic.id, reader)):
            raise TopicUnknown(
                f"no topic {written(source)} is shared with this tenant: its owner has to share it"
                f" first; {_NOTHING}"
            )
        return topic.id

    async def leave(self, name: str, *, is_dry_run: bool = False) -> bool:
        """Have a name of a tenant stand for no topic of another; returns whether it did. Raises
        MetadataUnavailable."""
        await self.sharing.update(tenant_of(name))
        was = self.sharing.is_accepted(name)
        if not is_dry_run:
            await self.sharing.leave(name)
        return was

    # --- lists -------------------------------------------------------------------------------

    def shared(self, tenant: str | None) -> list[tuple[str, str, bool]]:
        """(key of a topic, reader, whether the topic is still there) of all that a tenant, or
        (None) each, shares; sorted."""
        return sorted(
            (
                prefix_of(owner) + one.topic,
                one.reader,
                self._topics.find_by_id(one.id) is not None,
            )
            for owner in self._of(tenant)
            for one in self.sharing.given(owner)
        )

    def accepted(self, tenant: str | None) -> list[tuple[str, str, bool]]:
        """(the reader's key, the topic as its owner's tenant and name, whether it can be read) of
        all that a tenant, or (None) each, has accepted; sorted."""
        return sorted(
            (
                key := prefix_of(reader) + one.name,
                written(one.source),
                self._topics.readable.is_shared(key),
            )
            for reader in self._of(tenant)
            for one in self.sharing.read(reader)
        )

    def _of(self, tenant: str | None) -> Sequence[str]:
        return self.sharing.tenants() if tenant is None else [tenant]

    def _check_known(self) -> None:
        effect = "take the names of shared topics for free"
        self._cluster.check_known(SHARED_TOPICS, effect)
