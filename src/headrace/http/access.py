"""What each HTTP operation needs: the column `access` of the interface.

Invariants: an operation without a row here fails to start. The nouns that Kafka does not have are
mapped onto its operations as follows, so that one list of rules is enough (docs/SECURITY.md):

- A queue is a topic read by a group: to receive, settle and park is READ on both.
- A delayed record and a half message belong to those who may WRITE to the topic, who alone cancel
  and settle them; a producer group that is asked about them is a transactional id.
- Searches and traces READ the topic; of groups and other topics, what the client may see is shown.
- A redrive READs the dead letter topic and WRITEs to its target; without a target it may write to
  any topic that a record names, and so needs WRITE on all of them. What it leaves by `group` or
  `reason` it WRITEs to the dead letter topic. Its progress is that of a group, its transactions
  have an id: both have the same name on the command line.
- Users, rules and quotas are changed by a right to the cluster, as by Kafka's clients. People of a
  tenant need one to administer the tenant, and see and change its own alone; for users, one to each
  user that they name suffices, and to list them one to all.
- An export holds messages of its own topic alone.
- A task belongs to the user who started it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.access import (
    Access,
    How,
    Need,
    cluster,
    group,
    needs,
    public,
    topics,
    transaction,
)
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.records.letters import REDRIVE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
SEE_SETTINGS, SET = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


def _topic(operation: Operation, of: str = "path.topic", unless: Operation | None = None) -> Need:
    return topics(operation, of, How.WHOLE, unless)


def _group(operation: Operation) -> Need:
    return group(operation, "path.group")


def _shown(operation: Operation, kind: ResourceType, *places: str) -> tuple[Need, ...]:
    return tuple(Need(operation, kind, place, How.SHOWN) for place in places)


def _bookies(place: str) -> tuple[Need, ...]:
    """Addresses of machines of the cluster, as `listBrokers` shows."""
    return _shown(DESCRIBE, ResourceType.CLUSTER, f"{place}.bookies")


_QUEUE = needs(_group(READ), _topic(READ))
_SEE_QUEUE = needs(_group(DESCRIBE), _topic(DESCRIBE))
_MESSAGES = needs(
    _topic(READ),
    *_shown(READ, ResourceType.TOPIC, "messages.topic", "events.topic"),
    *_shown(DESCRIBE, ResourceType.GROUP, "messages.groups.group", "events.group", "tables.group"),
    *_bookies("events"),
)
_RESULTS = needs(
    *_shown(READ, ResourceType.TOPIC, "results.topic", "results.messages.topic"),
    *_shown(READ, ResourceType.TOPIC, "results.events.topic"),
    *_shown(DESCRIBE, ResourceType.GROUP, "results.groups.group", "results.events.group"),
    *_shown(DESCRIBE, ResourceType.GROUP, "results.messages.groups.group", "results.tables.group"),
    *_bookies("results.events"),
).by("owner")
_OWN = public("a client sees and cancels its own tasks alone").by("owner")

ACCESS: Final[Mapping[str, Access]] = {
    "getCluster": public("the brokers' ids, which every client may know"),
    "getSession": public("who a client is, the client may know"),
    "signIn": public("anyone who knows a user's password may do what the user may"),
    "signOut": public("a client ends its own session alone"),
    **{
        name: public("a client's own; those of others by CREATE_TOKENS, DESCRIBE_TOKENS").by(
            "owner"
        )
        for name in ("listKeys", "createKey", "revokeKey")
    },
    "listAcls": needs(cluster(DESCRIBE)).by("of_tenant"),
    "explainAcl": needs(cluster(DESCRIBE)).by("of_tenant"),
    "createAcl": needs(cluster(Operation.ALTER)).by("of_tenant"),
    "deleteAcl": needs(cluster(Operation.ALTER)).by("of_tenant"),
    "listSharedTopics": needs(cluster(DESCRIBE)).by("of_tenant"),
    "listAcceptedTopics": needs(cluster(DESCRIBE)).by("of_tenant"),
    **{
        name: needs(cluster(Operation.ALTER)).by("of_tenant")
        for name in ("shareTopic", "unshareTopic", "acceptTopic", "leaveTopic")
    },
    "listTenants": needs(cluster(DESCRIBE)),
    "getTenant": needs(cluster(DESCRIBE)),
    "createTenant": needs(cluster(Operation.ALTER)),
    "changeTenant": needs(cluster(Operation.ALTER)),
    "deleteTenant": needs(cluster(Operation.ALTER)),
    "listBrokers": needs(cluster(DESCRIBE)),
    "listMoves": needs(cluster(DESCRIBE), *_shown(DESCRIBE, ResourceType.TOPIC, "moves.topic")),
    "listLackingLedgers": needs(
        cluster(DESCRIBE), *_shown(DESCRIBE, ResourceType.TOPIC, "ledgers.topic")
    ),
    "listConnections": needs(cluster(DESCRIBE)),
    "getClusterConfig": needs(cluster(SEE_SETTINGS)),
    "getBrokerConfig": needs(cluster(SEE_SETTINGS)),
    "changeClusterConfig": needs(cluster(SET)),
    "changeBrokerConfig": needs(cluster(SET)),
    "listUsers": needs(cluster(DESCRIBE)).by("users"),
    **{
        name: needs(cluster(Operation.ALTER)).by("users")
        for name in ("createUser", "setPassword", "deleteUser")
    },
    "getOverview": needs(cluster(DESCRIBE), *_shown(DESCRIBE, ResourceType.GROUP, "lags.group")),
    "getHistory": needs(cluster(DESCRIBE)),
    "followEvents": needs(cluster(DESCRIBE)).by("stream"),
    "listTopics": needs(
        *_shown(DESCRIBE, ResourceType.TOPIC, "topics.name"),
        *_shown(DESCRIBE, ResourceType.GROUP, "topics.lags.group"),
    ),
    "createTopic": needs(_topic(Operation.CREATE, "body.name", Operation.CREATE)),
    "getTopic": needs(_topic(DESCRIBE), _topic(SEE_SETTINGS)),
    "listLedgers": needs(_topic(DESCRIBE), *_bookies("partitions.ledgers")),
    "listObjects": needs(_topic(READ)),
    "growTopic": needs(_topic(Operation.ALTER)),
    "deleteTopic": needs(_topic(Operation.DELETE, unless=Operation.DELETE)),
    "getTopicConfig": needs(_topic(SEE_SETTINGS)),
    "changeTopicConfig": needs(_topic(SET)),
    "produce": needs(_topic(WRITE)),
    "readRecords": needs(_topic(READ)),
    "followTopic": needs(_topic(READ)),
    "listDelayed": needs(_topic(READ)),
    "cancelDelayed": needs(_topic(WRITE)).audited(is_frequent=True),
    "deliverDelayed": needs(_topic(WRITE)).audited(is_frequent=True),
    "listRefusedDelayed": needs(_topic(READ)),
    "listHalfMessages": needs(_topic(WRITE)),
    "settleHalfMessages": needs(_topic(WRITE)).audited(is_frequent=True),
    "pollHalfChecks": needs(
        transaction(WRITE, "path.group"), *_shown(WRITE, ResourceType.TOPIC, "checks.topic")
    ),
    "listGroups": needs(*_shown(DESCRIBE, ResourceType.GROUP, "groups.group")),
    "getGroup": needs(
        _group(DESCRIBE),
        *_shown(DESCRIBE, ResourceType.TOPIC, "members.topics", "members.assignments.topic"),
    ),
    "deleteGroup": needs(_group(Operation.DELETE)),
    "getGroupOffsets": needs(
        _group(DESCRIBE), *_shown(DESCRIBE, ResourceType.TOPIC, "offsets.topic")
    ),
    "listPastOffsets": needs(
        _topic(DESCRIBE), *_shown(DESCRIBE, ResourceType.GROUP, "groups.group")
    ),
    "moveGroup": needs(_group(READ), _topic(READ, "body.offsets.topic")).audited(),
    "diagnoseGroup": needs(_group(DESCRIBE)),
    "getGroupLag": needs(_group(DESCRIBE)),
    "listHotKeys": needs(_topic(READ)),
    "listDeadLetterTopics": needs(*_shown(READ, ResourceType.TOPIC, "topics.name")),
    "summarizeDeadLetters": needs(
        _topic(READ),
        *_shown(READ, ResourceType.TOPIC, "causes.origin"),
        *_shown(DESCRIBE, ResourceType.GROUP, "causes.group"),
    ),
    "listDeadLetters": needs(_topic(READ)),
    "getDeadLetter": needs(_topic(READ)),
    "editDeadLetter": needs(_topic(READ), _topic(WRITE)),
    "takeBackDeadLetters": needs(
        _topic(READ), _topic(WRITE), *_shown(DESCRIBE, ResourceType.GROUP, "results.groups")
    ).by("handler"),
    "getGroupConfig": needs(_group(SEE_SETTINGS)),
    "changeGroupConfig": needs(_group(SET)),
    "queue": _SEE_QUEUE,
    "receive": _QUEUE,
    "settle": _QUEUE,
    "listParkedKeys": _SEE_QUEUE,
    "parkKeys": _QUEUE.audited(),
    "unparkKeys": _QUEUE.audited(),
    "listQuotas": needs(cluster(SEE_SETTINGS)).by("of_tenant"),
    "changeQuota": needs(cluster(SET)).by("of_tenant"),
    "deleteQuota": needs(cluster(SET)).by("of_tenant"),
    "findMessages": _MESSAGES,
    "traceMessage": _MESSAGES,
    "readShareJournal": needs(_topic(READ), *_shown(DESCRIBE, ResourceType.GROUP, "changes.group")),
    "exportMessages": needs(_topic(READ)),
    "startSearch": needs(_topic(READ, "body.topic")),
    "startTrace": needs(_topic(READ, "body.topic")),
    "startRedrive": needs(
        _topic(READ, "body.topic"),
        _topic(WRITE, "body.to"),
        group(READ, "body.topic")._replace(prefix=REDRIVE_PREFIX),
        transaction(WRITE, "body.topic")._replace(prefix=REDRIVE_PREFIX),
    )
    .by("redrive")
    .audited(),
    **{f"list{kind}Tasks": _OWN for kind in ("Search", "Trace", "Redrive")},
    **{f"{verb}{kind}": _RESULTS for kind in ("Search", "Trace") for verb in ("get", "follow")},
    **{f"{verb}Redrive": _OWN for verb in ("get", "follow")},
    **{f"cancel{kind}": _OWN for kind in ("Search", "Trace")},
    "cancelRedrive": _OWN.audited(),
}
"""By the names of operations."""
SEE_CLUSTER: Final = DESCRIBE, ResourceType.CLUSTER
MONITOR: Final = needs(cluster(DESCRIBE))
"""Of /metrics, and of the problems that /readyz names; that a broker is ready is not secret."""
EVERYWHERE: Final = "*"
"""The name of a resource to which only rules for all resources apply."""
