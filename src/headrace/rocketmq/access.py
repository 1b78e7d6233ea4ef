"""What each RPC needs: the column `access` of RocketMQ's table.

Invariants: an RPC without a row here fails to start. A queue is a topic read by a group, so to
receive and settle is READ on both, as over HTTP (docs/SECURITY.md); what is sent, delayed and half
belongs to those who may WRITE to the topic. RocketMQ's own permissions are SUB and PUB of the same
resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.access import Access, How, Need, group, needs, public, topics
from headrace.broker.security.authorizer import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def _topic(operation: Operation, of: str = "topic") -> Need:
    return topics(operation, of, How.WHOLE)


_SETTLE: Final = needs(group(READ, "group"), _topic(READ))
_RECEIVE: Final = needs(group(READ, "group"), _topic(READ, "message_queue.topic"))
_OWN: Final = "a client reports itself, and learns of groups and topics what it may use"

ACCESS: Final[Mapping[str, Access]] = {
    "QueryRoute": needs(_topic(DESCRIBE)),
    "Heartbeat": public(_OWN),
    "Telemetry": public(_OWN).by("telemetry"),
    "NotifyClientTermination": public(_OWN),
    "SendMessage": needs(_topic(WRITE, "messages.topic")),
    "EndTransaction": needs(_topic(WRITE)),
    "RecallMessage": needs(_topic(WRITE)),
    "QueryAssignment": needs(group(READ, "group"), _topic(READ)),
    "ReceiveMessage": _RECEIVE,
    "AckMessage": _SETTLE,
    "ChangeInvisibleDuration": _SETTLE,
    "ForwardMessageToDeadLetterQueue": _SETTLE,
    "PullMessage": _RECEIVE,
    "UpdateOffset": _RECEIVE,
    "GetOffset": _RECEIVE,
    "QueryOffset": needs(_topic(DESCRIBE, "message_queue.topic")),
    "SyncLiteSubscription": needs(group(READ, "group"), _topic(READ)),
}
"""By the names of RPCs."""
