"""The ledgers of topics over HTTP.

Invariants: parses and encodes; what is known of ledgers is in `broker/services/ledger_map`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.services.ledger_map import OBJECTS_MAX
from headrace.http.operations import (
    INT64_MAX,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    integer,
)
from headrace.http.partitions import failed_brokers, of_partitions

if TYPE_CHECKING:
    from headrace.broker.services.ledger_map import Ledger, LedgersOfPartition
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError


class LedgerOperations:
    """The operations on ledgers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/ledgers", "listLedgers",
                      "List the newest ledgers of a topic's partitions, with `partition` also the"
                      " bookies that store them, for clients that may DESCRIBE the cluster.",
                      self._list, {"topic": TOPIC, "partition": PARTITION}),
            Operation("GET", "/v1/topics/{topic}/objects/{partition}", "listObjects",
                      "List the sealed ledgers of a partition that are in object storage, for"
                      " readers that have access to it: those with records from `offset` on.",
                      self._objects,
                      {"topic": TOPIC, "partition": PARTITION,
                       "offset": integer(0, INT64_MAX, default=0),
                       "limit": integer(1, OBJECTS_MAX, default=OBJECTS_MAX)}),
            Operation("GET", "/v1/ledgers/lacking", "listLackingLedgers",
                      "List the ledgers of all topics of which copies are missing.",
                      self._lacking),
        ]  # fmt: skip

    async def _lacking(self, call: Call) -> Json:
        found, count, failed = await self._services.ledgers.lacking(
            lambda topic: call.rights.may(Right.DESCRIBE, ResourceType.TOPIC, topic)
        )
        ledgers = [one._asdict() for one in found]
        return {"ledgers": ledgers, "count": count, **failed_brokers(failed)}

    async def _list(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        found: dict[int, LedgersOfPartition | HeadraceError]
        if "partition" in call.query:
            number = int(call.query["partition"])
            found = {number: await self._services.ledgers.of_partition(topic, number)}
        else:
            found = await self._services.ledgers.of_topic(topic)
        known, failed = of_partitions(found)
        partitions = [self._shown(topic, number, one) for number, one in sorted(known.items())]
        return {"topic": topic.name, "partitions": partitions, **failed}

    async def _objects(self, call: Call) -> Json:
        topic, number = self._services.topics.get(call.path["topic"]), call.path["partition"]
        offset, limit = call.query.get("offset", 0), call.query.get("limit", OBJECTS_MAX)
        found = await self._services.ledgers.objects_of(topic, number, offset, limit)
        answer: Json = {
            "topic": topic.name,
            "topic_id": str(topic.id),
            "partition": number,
            "prefix": found.prefix,
            "objects": [one._asdict() for one in found.objects],
        }
        if found.next_offset is not None:
            answer["next_offset"] = found.next_offset
        return answer

    def _shown(self, topic: Topic, number: int, one: LedgersOfPartition) -> Json:
        return {
            "partition": number,
            "broker": self._services.topics.leader(topic, number).broker,
            "is_loaded": one.is_loaded,
            "ledger_count": one.ledger_count,
            "ledgers": [_ledger(ledger) for ledger in one.ledgers],
        }


def _ledger(one: Ledger) -> Json:
    found = one._asdict()
    machines = found.pop("machines")
    found["newest_ms"] = None if one.newest_ms < 0 else one.newest_ms
    return found | ({"bookies": machines} if machines else {})
