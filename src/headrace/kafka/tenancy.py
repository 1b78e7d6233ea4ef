"""Turns the names that a tenant's client writes into keys, and keys in its answers into names.

Invariants: requests pass here between the dispatcher and authorization, so that rights are asked of
keys: a field that is forgotten here is a name of the default tenant, to which the client has no
rights. An API without a row in `NAMES` is refused to tenants. The id of another tenant's topic is
replaced by one that no topic has, so that it is answered as if that topic did not exist. What
leaves has no key of the client's tenant; it has no other key, because answers show only what the
client has rights to. Produce and Fetch translate by themselves, with `shown_topic`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker.coordinators.group_config import DEAD_LETTER_TOPIC
from headrace.broker.services.tenant_view import view_of
from headrace.errors import ClusterUnauthorized
from headrace.kafka import apis
from headrace.kafka.wire.codecs import Message
from headrace.records.tenant_names import prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.node import Node
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.authorizer import Authorizer

_OF_SUBTOPOLOGIES: Final = (
    *("source_topics", "source_topic_regex", "repartition_sink_topics"),
    *("repartition_source_topics.name", "state_changelog_topics.name"),
)
NAMES: Final[Mapping[int, tuple[str, ...]]] = {
    apis.API_VERSIONS: (),
    apis.SASL_HANDSHAKE: (),
    apis.SASL_AUTHENTICATE: (),
    apis.DESCRIBE_CLUSTER: (),
    apis.GET_TELEMETRY_SUBSCRIPTIONS: (),
    apis.PUSH_TELEMETRY: (),
    apis.METADATA: ("topics.name",),
    apis.DESCRIBE_TOPIC_PARTITIONS: ("topics.name", "cursor.topic_name"),
    apis.LIST_OFFSETS: ("topics.name",),
    apis.OFFSET_FOR_LEADER_EPOCH: ("topics.topic",),
    apis.DELETE_RECORDS: ("topics.name",),
    apis.DESCRIBE_PRODUCERS: ("topics.name",),
    apis.CREATE_TOPICS: ("topics.name",),
    apis.DELETE_TOPICS: ("topics.name", "topic_names"),
    apis.CREATE_PARTITIONS: ("topics.name",),
    apis.DESCRIBE_CONFIGS: ("resources.resource_name",),
    apis.ALTER_CONFIGS: ("resources.resource_name",),
    apis.INCREMENTAL_ALTER_CONFIGS: ("resources.resource_name",),
    apis.FIND_COORDINATOR: ("key", "coordinator_keys"),
    apis.JOIN_GROUP: ("group_id",),
    apis.SYNC_GROUP: ("group_id",),
    apis.HEARTBEAT: ("group_id",),
    apis.LEAVE_GROUP: ("group_id",),
    apis.CONSUMER_GROUP_HEARTBEAT: (
        *("group_id", "subscribed_topic_names", "subscribed_topic_regex"),
    ),
    apis.OFFSET_COMMIT: ("group_id", "topics.name"),
    apis.OFFSET_FETCH: (*("group_id", "topics.name", "groups.group_id", "groups.topics.name"),),
    apis.OFFSET_DELETE: ("group_id", "topics.name"),
    apis.DESCRIBE_GROUPS: ("groups",),
    apis.CONSUMER_GROUP_DESCRIBE: ("group_ids",),
    apis.SHARE_GROUP_HEARTBEAT: ("group_id", "subscribed_topic_names"),
    apis.SHARE_GROUP_DESCRIBE: ("group_ids",),
    apis.SHARE_FETCH: ("group_id",),
    apis.SHARE_ACKNOWLEDGE: ("group_id",),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: ("groups.group_id", "groups.topics.topic_name"),
    apis.ALTER_SHARE_GROUP_OFFSETS: ("group_id", "topics.topic_name"),
    apis.DELETE_SHARE_GROUP_OFFSETS: ("group_id", "topics.topic_name"),
    apis.STREAMS_GROUP_HEARTBEAT: (
        *("group_id", *(f"topology.subtopologies.{one}" for one in _OF_SUBTOPOLOGIES)),
    ),
    apis.STREAMS_GROUP_DESCRIBE: ("group_ids",),
    apis.LIST_GROUPS: (),
    apis.DELETE_GROUPS: ("groups_names",),
    apis.INIT_PRODUCER_ID: ("transactional_id",),
    apis.ADD_PARTITIONS_TO_TXN: ("v3_and_below_transactional_id", "v3_and_below_topics.name"),
    apis.ADD_OFFSETS_TO_TXN: ("transactional_id", "group_id"),
    apis.TXN_OFFSET_COMMIT: ("transactional_id", "group_id", "topics.name"),
    apis.END_TXN: ("transactional_id",),
    apis.DESCRIBE_TRANSACTIONS: ("transactional_ids",),
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: ("users.name",),
    apis.ALTER_USER_SCRAM_CREDENTIALS: ("deletions.name", "upsertions.name"),
    apis.DESCRIBE_ACLS: ("resource_name_filter",),
    apis.CREATE_ACLS: ("creations.resource_name",),
    apis.DELETE_ACLS: ("filters.resource_name_filter",),
    apis.DESCRIBE_CLIENT_QUOTAS: (),
    apis.ALTER_CLIENT_QUOTAS: (),
}
"""The fields with names of topics, groups, transactional ids and users in the requests of each API
that tenants may send. Produce and Fetch are not dispatched as these are. Keys in requests about
rules are for the audit log: `broker/services/tenant_acls` makes the patterns."""
_TOPIC, _GROUP = 2, 32
"""The types of resources whose settings a tenant may see. Do not change: on the wire."""
_WITH_NAMES: Final = frozenset({DEAD_LETTER_TOPIC})
"""Settings whose values are names."""
_TEXTS: Final = frozenset({"error_message", "acknowledge_error_message", "status_detail"})
"""Fields of answers with texts for people, in which there may be keys."""
_CLUSTER_ID: Final = "cluster_id"
_KEYS: Final = frozenset(
    {
        *("group_id", "key", "name", "resource_name", "topic", "topic_name", "transactional_id"),
        *("subscribed_topic_names", "subscribed_topic_regex", "user"),
        *("source_topics", "source_topic_regex", "repartition_sink_topics"),
    }
)
"""Fields of answers with keys. All others are returned as they are: an id that a client chose may
look like a key."""


NOT_FOR_TENANTS: Final = ClusterUnauthorized(
    "tenants may not send this request: ask the operators of the cluster"
)


def tenancy_of(node: Node, session: ClientSession) -> Tenancy | None:
    """How the session's requests are translated; None if it uses the keys of all tenants."""
    return None if node.services.authorizer.sees_all(session) else Tenancy(node, session)


def is_foreign(authorizer: Authorizer, session: ClientSession, key: str) -> bool:
    """Whether a key is of another tenant than the session's, and hidden from it."""
    if not authorizer.has_tenants or authorizer.sees_all(session):
        return False
    return tenant_of(key) != authorizer.tenant(session)


def topic_prefix(authorizer: Authorizer, session: ClientSession) -> bytes:
    """What precedes a topic's name in its key, as in Produce and Fetch; empty without a tenant."""
    if session.key_principal is not session.principal or session.key_version != authorizer.version:
        session.key_version = authorizer.version
        session.key_prefix = prefix_of(authorizer.tenant(session)).encode()
        session.key_principal = session.principal
    return session.key_prefix


class Tenancy:
    """One request of a client that does not see all tenants."""

    def __init__(self, node: Node, session: ClientSession) -> None:
        self._authorizer = node.services.authorizer
        self._topics = node.services.topics
        self._readable = self._topics.readable
        self._session = session
        self._view = view_of(node.services, session)
        self.prefix = self._view.prefix
        self._replaced: dict[UUID, UUID] = {}
        """By ids that no topic has: those that the client sent."""

    def enter(self, api_key: int, request: Any) -> bool:
        """Turn the names of a request into keys, and the ids of other tenants into unknown ones.
        False if tenants may not send it."""
        if self.prefix:
            resources = getattr(request, "resources", ())
            kinds = {one.resource_type for one in resources}
            if api_key not in NAMES or not kinds <= {_TOPIC, _GROUP}:
                return False
            for path in NAMES[api_key]:
                self._add(request, path)
            for one in resources:
                for setting in getattr(one, "configs", None) or ():
                    if setting.name in _WITH_NAMES:
                        self._add(setting, "value")
        self._replace_ids(request)
        return True

    def _add(self, message: Any, path: str) -> None:
        field, _, rest = path.partition(".")
        value = getattr(message, field, None)
        if value is None or field not in message.__slots__:
            return
        if rest:
            for item in value if isinstance(value, tuple | list) else (value,):
                self._add(item, rest)
        elif isinstance(value, str):
            if value:
                setattr(message, field, self.prefix + value)
        else:
            setattr(message, field, tuple(self.prefix + name for name in value))

    def _replace_ids(self, value: Any) -> None:
        if isinstance(value, tuple | list):
            for item in value:
                self._replace_ids(item)
        elif isinstance(value, Message):
            for field in value.__slots__:
                inner = getattr(value, field)
                if isinstance(inner, UUID):
                    setattr(value, field, self._hidden(inner))
                else:
                    self._replace_ids(inner)

    def _hidden(self, sent: UUID) -> UUID:
        topic = self._readable.find_by_id(sent)
        if topic is None or not is_foreign(self._authorizer, self._session, topic.name):
            return sent
        unknown = self._topics.new_id()
        self._replaced[unknown] = sent
        return unknown

    def leave(self, value: Any, field: str = "") -> Any:
        """An answer as its client may see it."""
        if isinstance(value, str):
            if field in _TEXTS:
                for unknown, sent in self._replaced.items():
                    value = value.replace(str(unknown), str(sent))
                return self._view.text(value)
            if field == _CLUSTER_ID:
                return self._view.without_id(value)
            return value.removeprefix(self.prefix) if field in _KEYS else value
        if isinstance(value, UUID):
            return self._replaced.get(value, value)
        if isinstance(value, dict):
            # The value of a setting that names something is a key, too.
            is_of_name = value.get("name") in _WITH_NAMES
            return {
                name: self.leave(one, "name" if is_of_name and name == "value" else name)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple) and not isinstance(value, str):
            return [self.leave(item, field) for item in value]
        return value
