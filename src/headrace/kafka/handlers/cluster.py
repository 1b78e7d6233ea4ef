"""DescribeQuorum, UpdateFeatures, UnregisterBroker: what Kafka's controller does, and this has not.

Invariants: nothing is changed. There is no Raft quorum, the levels of features come with the
software, and a broker's registration ends with its session. Each request is answered with the
truth about that, or with Kafka's error for what cannot be had.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from headrace.kafka import apis
from headrace.kafka.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    INVALID_REQUEST,
    INVALID_UPDATE_VERSION,
    NONE,
    UNSUPPORTED_VERSION,
)
from headrace.kafka.handlers.metadata import FEATURES

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

WITH_UPGRADE_TYPE_FROM: Final = 1
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NO_QUORUM: Final = (
    "there is no metadata quorum: the metadata is in ZooKeeper, or in a file of a stand-alone"
    " broker. See `headrace cluster status`"
)


async def describe_quorum(_node: Node, _request: Any, _context: Context) -> Answer:
    """DescribeQuorum: refused as by Kafka without KRaft, whose tools expect that error."""
    return {
        "error_code": UNSUPPORTED_VERSION,
        "error_message": NO_QUORUM,
        "topics": [],
        "nodes": [],
    }


def _feature_problem(update: Any, version: int) -> str:
    """Why a feature cannot have this level; "" if it has it already."""
    name, level = update.feature, update.max_version_level
    if name not in FEATURES:
        return f"feature {name[:100]!r} does not exist: there are {', '.join(sorted(FEATURES))}"
    if level == FEATURES[name]:
        return ""
    upgrade_type = update.upgrade_type if version >= WITH_UPGRADE_TYPE_FROM else UPGRADE
    if level > FEATURES[name]:
        reason = "a higher one comes with a newer release"
    elif upgrade_type == UPGRADE and not update.allow_downgrade:
        reason = "a lower one is a downgrade, which the request does not allow"
    else:
        reason = "what it stands for cannot be switched off"
    return f"feature {name} has level {FEATURES[name]} and cannot have level {level}: {reason}"


async def update_features(_node: Node, request: Any, context: Context) -> Answer:
    """UpdateFeatures (KIP-584): only the present levels can be set, and one that cannot be refuses
    the request as a whole, as Kafka 4 does in every version."""
    updates, version = request.feature_updates, context.version
    counts = Counter(update.feature for update in updates)
    problems: dict[str, tuple[int, str]] = {}
    for update in updates:
        if counts[update.feature] > 1:
            problem = f"feature {update.feature[:100]!r} is named twice in one request"
            problems[update.feature] = INVALID_REQUEST, problem
        elif version >= WITH_UPGRADE_TYPE_FROM and not (
            UPGRADE <= update.upgrade_type <= UNSAFE_DOWNGRADE
        ):
            problem = f"{update.upgrade_type} is not an upgrade type: use 1, 2 or 3"
            problems[update.feature] = INVALID_REQUEST, problem
        elif problem := _feature_problem(update, version):
            problems[update.feature] = INVALID_UPDATE_VERSION, problem
    code, message = next(iter(problems.values()), (NONE, None))
    results = [
        {"feature": update.feature, "error_code": NONE, "error_message": None}
        for update in updates
        if code == NONE
    ]
    return {"error_code": code, "error_message": message, "results": results}


async def unregister_broker(node: Node, request: Any, _context: Context) -> Answer:
    """UnregisterBroker (KIP-500): a live broker cannot be, any other one is not registered."""
    broker_id = request.broker_id
    if any(broker.id == broker_id for broker in node.services.cluster.brokers()):
        code = INVALID_REQUEST
        message = (
            f"broker {broker_id} is running: stop it, and its registration ends with its session;"
            " to move its partitions away before, use `headrace cluster drain`"
        )
    else:
        code = BROKER_ID_NOT_REGISTERED
        message = f"broker {broker_id} is not registered: a registration ends with its session"
    return {"error_code": code, "error_message": message}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_QUORUM: describe_quorum,
    apis.UPDATE_FEATURES: update_features,
    apis.UNREGISTER_BROKER: unregister_broker,
}
