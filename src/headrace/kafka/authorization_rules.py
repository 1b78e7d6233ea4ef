"""The rules of APIs whose access is more than their needs as written; and the entrance for all.

Invariants: a rule raises Unauthorized to refuse the request, takes refused items out of it, and
filters the answer. Each is Kafka's, in the order in which Kafka checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import USER
from headrace.broker.services.tenant_acls import own_cluster
from headrace.broker.services.tenant_view import view_of
from headrace.coordination.groups.consumer_protocol import read_assignment, read_subscription
from headrace.errors import Unauthorized
from headrace.kafka.authorization import Check, as_written
from headrace.kafka.error_codes import OPERATION_NOT_ATTEMPTED, TOPIC_AUTHORIZATION_FAILED
from headrace.kafka.refusals import refusal, refused_items
from headrace.records.identifiers import INTERNAL_TOPICS
from headrace.records.tenant_names import DEFAULT, tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.node import Node
    from headrace.broker.security.access import Access
    from headrace.kafka.apis import Api
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
"""Key types of FindCoordinator. Do not change: on the wire."""
CONFIG_KINDS: Final = {2: TOPIC, 32: GROUP}
"""Config resource types; all others are the cluster's."""
BATCHED_SINCE: Final = 4
"""From here on only brokers send AddPartitionsToTxn."""
TOPIC_IDS_SINCE: Final = 6
"""The first version of DeleteTopics that may name ids."""
CONSUMER: Final = "consumer"
"""The type of groups whose assignments the broker makes and shows by name (KIP-848)."""
HIDDEN: Final = "the group uses topics that the client may not DESCRIBE"


def _refusal_of_topic(check: Check, operation: Operation, name: str | None) -> Unauthorized | None:
    if name is None or check.may_topic(operation, name):
        return None
    return check.error(operation, TOPIC, name)


def _refusal_without_cluster(
    check: Check, operation: Operation, name: str | None
) -> Unauthorized | None:
    is_given = name is not None and _is_given_by_cluster(check, operation, name)
    return None if is_given else _refusal_of_topic(check, operation, name)


def _is_given_by_cluster(check: Check, operation: Operation, name: str) -> bool:
    """Whether a right to the cluster, which is one to all topics but those of tenants, gives it."""
    return check.may_cluster(operation) and tenant_of(name) == DEFAULT


# --- topics ----------------------------------------------------------------------------------


async def metadata(check: Check, _access: Access) -> Answer:
    """Metadata: refuses named topics, leaves out unnamed ones. The id of a topic is no secret, so
    that one asked by id is refused as such; a name is refused whether it exists or not."""
    request = check.request
    asked = request.topics
    if asked is None or (check.context.version == 0 and not asked):
        answer = await check.proceed()
        check.show(answer, "topics", lambda item: check.may_topic(Operation.DESCRIBE, item["name"]))
        return answer
    may_create = (
        check.node.services.settings.current.auto_create_topics
        and request.allow_auto_topic_creation
    )
    find = check.node.services.topics.readable.find

    def refuse(item: Any) -> Unauthorized | None:
        is_id = item.topic_id is not None and not item.name
        name = check.topic_of(item.topic_id) if is_id else item.name
        error = _refusal_of_topic(check, Operation.DESCRIBE, name)
        is_new = may_create and name and find(name) is None and name not in INTERNAL_TOPICS
        if error is None and is_new and not check.may_cluster(Operation.CREATE):
            error = _refusal_of_topic(check, Operation.CREATE, name)
        if error is not None and not is_id and item.topic_id is not None:
            item.topic_id = None
        return error

    check.keep("topics", refuse, may_skip=False)
    names = {item.name for item in request.topics}
    answer = await check.proceed()
    if check.context.version == 0 and not names:  # an empty list asks for all topics
        check.show(answer, "topics", lambda item: item["error_code"] == TOPIC_AUTHORIZATION_FAILED)
    return answer


async def describe_topic_partitions(check: Check, _access: Access) -> Answer:
    """DescribeTopicPartitions: without names, those that the client may see, so that neither a
    page nor its cursor shows another."""
    topics = check.node.services.topics.readable
    if check.request.topics:
        check.keep("topics", lambda item: _refusal_of_topic(check, Operation.DESCRIBE, item.name))
        return await check.proceed()
    seen = [name for name in topics.names() if check.may_topic(Operation.DESCRIBE, name)]
    if not seen:
        return refusal(check.context.api_key, check.context.version, None, None)
    check.request.topics = tuple(SimpleNamespace(name=name) for name in seen)
    return await check.proceed()


async def create_topics(check: Check, _access: Access) -> Answer:
    """CreateTopics: the configuration of a new topic is shown to those who may see it."""
    check.keep("topics", lambda item: _refusal_without_cluster(check, Operation.CREATE, item.name))
    answer = await check.proceed()
    for item in answer["topics"]:
        if not item["error_code"] and not check.may_topic(Operation.DESCRIBE_CONFIGS, item["name"]):
            item["topic_config_error_code"] = TOPIC_AUTHORIZATION_FAILED
            item["num_partitions"] = item["replication_factor"] = -1
            item["configs"] = []
    return answer


async def delete_topics(check: Check, _access: Access) -> Answer:
    """DeleteTopics: neither the name of an id nor whether a name exists is revealed to those who
    may not DESCRIBE the topic."""
    if check.context.version < TOPIC_IDS_SINCE:
        check.keep(
            "topic_names", lambda name: _refusal_without_cluster(check, Operation.DELETE, name)
        )
        return await check.proceed()
    find = check.node.services.topics.readable.find

    def refuse(item: Any) -> Unauthorized | None:
        is_id = item.topic_id is not None and item.name is None
        name = check.topic_of(item.topic_id) if is_id else item.name
        if name is None or _is_given_by_cluster(check, Operation.DELETE, name):
            return None
        may_see = check.may_topic(Operation.DESCRIBE, name)
        known = find(name)
        if may_see and (known is None or check.may_topic(Operation.DELETE, name)):
            return None
        if may_see and is_id:
            item.name = name
        elif may_see and known is not None:
            item.topic_id = known.id
        return check.error(Operation.DELETE, TOPIC, name)

    check.keep("topics", refuse)
    return await check.proceed()


async def configs(check: Check, access: Access) -> Answer:
    """DescribeConfigs and its alterations: each resource by its kind."""
    operation = access.needs[0].operation

    def refuse(resource: Any) -> Unauthorized | None:
        kind = CONFIG_KINDS.get(resource.resource_type, CLUSTER)
        name = CLUSTER_NAME if kind == CLUSTER else resource.resource_name
        return None if check.may(operation, kind, name) else check.error(operation, kind, name)

    check.keep("resources", refuse)
    return await check.proceed()


# --- groups ----------------------------------------------------------------------------------


async def find_coordinator(check: Check, _access: Access) -> Answer:
    """FindCoordinator: by the type of the key."""
    kind = {GROUP_KEY: GROUP, TRANSACTION_KEY: TRANSACTION}.get(check.request.key_type)
    if check.request.key_type == SHARE_KEY:
        check.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
    if kind is None:
        return await check.proceed()

    def refuse(name: str) -> Unauthorized | None:
        if check.may(Operation.DESCRIBE, kind, name):
            return None
        return check.error(Operation.DESCRIBE, kind, name)

    if check.context.version < BATCHED_SINCE:
        check.require(Operation.DESCRIBE, kind, check.request.key)
    else:
        check.keep("coordinator_keys", refuse)
    return await check.proceed()


def _topic_in(check: Check, item: Any) -> str | None:
    """The name of a topic in a request; None for an id that does not exist."""
    topic_id = getattr(item, "topic_id", None)
    if topic_id is not None:
        return check.topic_of(topic_id)
    return getattr(item, "name", None) or getattr(item, "topic_name", None)


async def offset_fetch(check: Check, _access: Access) -> Answer:
    """OffsetFetch, and DescribeShareGroupOffsets: of several groups, each with topics or all."""
    request, context = check.request, check.context
    if not request.groups:
        return await _offset_fetch_of_one(check)
    check.keep("groups", lambda group: _refusal_of_group(check, group.group_id))
    refused: dict[str, list[dict[str, Any]]] = {}
    named: set[str] = set()
    for group in request.groups:
        if group.topics is None:
            continue
        named.add(group.group_id)
        kept: list[Any] = []
        for item in group.topics:
            error = _refusal_of_topic(check, Operation.DESCRIBE, _topic_in(check, item))
            if error is None:
                kept.append(item)
            else:
                refused.setdefault(group.group_id, []).extend(
                    refused_items(context.api_key, context.version, "groups.topics", [item], error)
                )
        group.topics = tuple(kept)
    answer = await check.proceed()
    for item in answer["groups"]:
        if item["group_id"] not in named:
            item["topics"] = [one for one in item["topics"] if _is_seen(check, one)]
        if not item["error_code"]:
            item["topics"] = [*item["topics"], *refused.get(item["group_id"], ())]
    return answer


def _refusal_of_group(check: Check, name: str) -> Unauthorized | None:
    if check.may(Operation.DESCRIBE, GROUP, name):
        return None
    return check.error(Operation.DESCRIBE, GROUP, name)


def _is_seen(check: Check, topic: Any) -> bool:
    name = topic.get("name") or topic.get("topic_name")
    return check.may_topic(Operation.DESCRIBE, name)


async def _offset_fetch_of_one(check: Check) -> Answer:
    check.require(Operation.DESCRIBE, GROUP, check.request.group_id)
    is_all = check.request.topics is None
    check.keep("topics", lambda item: _refusal_of_topic(check, Operation.DESCRIBE, item.name))
    answer = await check.proceed()
    if is_all:
        check.show(answer, "topics", lambda item: _is_seen(check, item))
    return answer


async def subscribe(check: Check, _access: Access) -> Answer:
    """ConsumerGroupHeartbeat and ShareGroupHeartbeat: a member may DESCRIBE what it subscribes to.
    Of topics that match its pattern it learns of those alone that it may DESCRIBE."""
    request = check.request
    check.require(Operation.READ, GROUP, request.group_id)
    for name in request.subscribed_topic_names or ():
        check.require(Operation.DESCRIBE, TOPIC, name)
    pattern = getattr(request, "subscribed_topic_regex", None)
    if pattern and tenant_of(pattern) != tenant_of(request.group_id):
        raise check.error(Operation.DESCRIBE, TOPIC, pattern)
    answer = await check.proceed()
    assignment = answer.get("assignment")
    if assignment is not None:
        check.show(
            assignment,
            "topic_partitions",
            lambda item: (
                (name := check.topic_of(item["topic_id"])) is None
                or check.may_topic(Operation.DESCRIBE, name)
            ),
        )
    return answer


async def streams_heartbeat(check: Check, _access: Access) -> Answer:
    """StreamsGroupHeartbeat: a member may DESCRIBE the topics of its topology, and CREATE those
    that the broker creates for it."""
    request = check.request
    check.require(Operation.READ, GROUP, request.group_id)
    topology = request.topology
    if topology is not None:
        internal: list[str] = []
        names: list[str] = []
        for part in topology.subtopologies:
            names += [*part.source_topics, *part.repartition_sink_topics]
            internal += [one.name for one in part.repartition_source_topics]
            internal += [one.name for one in part.state_changelog_topics]
        for name in dict.fromkeys([*names, *internal]):
            check.require(Operation.DESCRIBE, TOPIC, name)
        if not check.may_cluster(Operation.CREATE):
            for name in dict.fromkeys(internal):
                if check.node.services.topics.readable.find(name) is None:
                    check.require(Operation.CREATE, TOPIC, name)
    return await check.proceed()


async def describe_members(check: Check, access: Access) -> Answer:
    """ConsumerGroupDescribe, ShareGroupDescribe, StreamsGroupDescribe: a group whose members use a
    topic that the client may not DESCRIBE is refused (CVE-2026-41115)."""
    check.refuse_each(access.needs[0])
    answer = await check.proceed()
    for group in answer["groups"]:
        if group["error_code"]:
            continue
        _hide_members(check, group, dict.fromkeys(_topics_of(group)))
    return answer


async def describe_groups(check: Check, access: Access) -> Answer:
    """DescribeGroups: of a group whose assignments the broker makes, as in `describe_members`. What
    members of a classic group sent each other is shown as it is, as in Kafka."""
    check.refuse_each(access.needs[0])
    answer = await check.proceed()
    for group in answer["groups"]:
        if group.get("group_type") != CONSUMER:
            continue
        names: dict[str, None] = {}
        for member in group["members"]:
            assigned = read_assignment(member["member_assignment"], group["group_id"])
            subscribed = read_subscription(member["member_metadata"], group["group_id"])
            names.update(dict.fromkeys([*assigned, *(subscribed.topics if subscribed else ())]))
        _hide_members(check, group, names)
    return answer


def _hide_members(check: Check, group: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse a described group if its members use a topic that the client may not DESCRIBE."""
    hidden = [name for name in names if not check.may_topic(Operation.DESCRIBE, name)]
    if not hidden:
        return
    check.error(Operation.DESCRIBE, TOPIC, hidden[0])
    group["error_code"] = TOPIC_AUTHORIZATION_FAILED
    group["error_message"] = HIDDEN
    group["members"] = []
    if "topology" in group:
        group["topology"] = None


def _topics_of(value: Any, key: str = "") -> list[str]:
    """The names of all topics in a described group: of assignments, subscriptions, a topology."""
    found: list[str] = []
    if isinstance(value, dict):
        for field, item in value.items():
            is_name = field == "topic_name" or (field == "name" and key.endswith("_topics"))
            if is_name and item:
                found.append(item)
            elif field != "members" or not key:
                found += _topics_of(item, field)
    elif isinstance(value, list | tuple):
        if key.endswith(("_topics", "topic_names")):
            found += [item for item in value if isinstance(item, str)]
        for item in value:
            if isinstance(item, dict):
                found += _topics_of(item, key)
    return found


async def share(check: Check, _access: Access) -> Answer:
    """ShareFetch and ShareAcknowledge. The handler checks again what a share session contains: its
    partitions outlive the request that added them."""
    if check.request.group_id:
        check.require(Operation.READ, GROUP, check.request.group_id)
    check.keep(
        "topics",
        lambda item: _refusal_of_topic(check, Operation.READ, check.topic_of(item.topic_id)),
        may_skip=False,
    )
    return await check.proceed()


# --- transactions ----------------------------------------------------------------------------


async def init_producer_id(check: Check, _access: Access) -> Answer:
    """InitProducerId: whoever may write to any topic may be idempotent (KIP-679)."""
    name = check.request.transactional_id
    if name is not None:
        check.require(Operation.WRITE, TRANSACTION, name)
        if check.request.enable2_pc:
            check.require(Operation.TWO_PHASE_COMMIT, TRANSACTION, name)
    elif not check.may_cluster(Operation.IDEMPOTENT_WRITE):
        session = check.context.session
        if not check.node.services.authorizer.allows_any(session, Operation.WRITE, TOPIC):
            check.require(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
    return await check.proceed()


async def add_partitions(check: Check, _access: Access) -> Answer:
    """AddPartitionsToTxn: if one topic is refused, none is added."""
    request, context = check.request, check.context
    if context.version >= BATCHED_SINCE:
        check.require(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        return await check.proceed()
    check.require(Operation.WRITE, TRANSACTION, request.v3_and_below_transactional_id)
    refused = {
        item.name: error
        for item in request.v3_and_below_topics
        if (error := _refusal_of_topic(check, Operation.WRITE, item.name)) is not None
    }
    if not refused:
        return await check.proceed()
    answer = refusal(context.api_key, context.version, request, next(iter(refused.values())))
    for topic in answer["results_by_topic_v3_and_below"]:
        if topic["name"] not in refused:
            for part in topic["results_by_partition"]:
                part["partition_error_code"] = OPERATION_NOT_ATTEMPTED
    return answer


async def of_tenant(check: Check, access: Access) -> Answer:
    """Describe-, Create- and DeleteAcls, Describe- and AlterClientQuotas: of all rules and quotas
    by a right to the cluster, as in Kafka. People of a tenant need one to administer the tenant,
    and have its own alone."""
    tenant = check.node.services.authorizer.tenant(check.context.session)
    if tenant == DEFAULT:
        return await as_written(check, access)
    check.require(access.needs[0].operation, CLUSTER, own_cluster(tenant))
    return await check.proceed()


async def scram_users(check: Check, access: Access) -> Answer:
    """Describe- and AlterUserScramCredentials: of all users by a right to the cluster, as in Kafka.
    People of a tenant, who have none, need one to administer the tenant, or one to each user of the
    tenant's own that they name, and to list them one to all: a prefixed rule on `User:«tenant»`."""
    services, session = check.node.services, check.context.session
    tenant = services.authorizer.tenant(session)
    if tenant == DEFAULT:
        return await as_written(check, access)
    operation, request = access.needs[0].operation, check.request
    if check.may(operation, CLUSTER, own_cluster(tenant)):
        return await check.proceed()
    lists = (getattr(request, one, None) or () for one in ("users", "deletions", "upsertions"))
    names = [item.name for items in lists for item in items]
    for name in names or [view_of(services, session).prefix]:
        check.require(operation, ResourceType.USER, f"{USER}:{name}")
    return await check.proceed()


async def describe_transactions(check: Check, access: Access) -> Answer:
    """DescribeTransactions: of a transaction, the topics that the client may DESCRIBE."""
    check.refuse_each(access.needs[0])
    answer = await check.proceed()
    for item in answer["transaction_states"]:
        item["topics"] = [
            one for one in item["topics"] if check.may_topic(Operation.DESCRIBE, one["topic"])
        ]
    return answer


Rule = Callable[[Check, "Access"], Awaitable["Answer"]]
RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        metadata,
        describe_topic_partitions,
        create_topics,
        delete_topics,
        configs,
        find_coordinator,
        offset_fetch,
        subscribe,
        streams_heartbeat,
        describe_groups,
        describe_members,
        share,
        init_producer_id,
        add_partitions,
        describe_transactions,
        scram_users,
        of_tenant,
    )
}


async def authorized(
    node: Node, api: Api, handler: Handler, request: Any, context: Context
) -> Answer:
    """The answer to a request, as far as its client may have it."""
    check = Check(node, api, request, context, handler)
    access = api.access
    try:
        if access.rule:
            return await RULES[access.rule](check, access)
        return await as_written(check, access)
    except Unauthorized as error:
        return check.refuse(error)
