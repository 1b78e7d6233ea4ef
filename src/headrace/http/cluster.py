"""The cluster that a broker belongs to, over HTTP: its ids, brokers and clients.

Invariants: reads only, and answers from what this broker knows now. Clients that know a cluster by
its Kafka address compare its id with this one before they change anything over HTTP. What a client
says of its software is shown as it was said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.http.operations import PAGE, Call, Json, Operation, page, text
from headrace.http.partitions import failed_brokers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.broker.services.services import Services
    from headrace.http.broker_figures import BrokerFigures
    from headrace.http.schemas import Schema
    from headrace.metadata.facts import BrokerFact


FILTERS: Final[Mapping[str, Schema]] = {
    name: text(1_000, description=what)
    for name, what in (
        ("software", "Of this software, as clients name it (KIP-511)."),
        ("software_version", "Of this version of the software."),
        ("principal", "Of this principal, such as User:alice."),
        ("client_id", "Of this client id."),
    )
}
COUNTS_MAX: Final = 200


class ClusterOperations:
    """The operations on the cluster."""

    def __init__(
        self,
        services: Services,
        connections: Callable[[], Iterable[Any]] = tuple,
        figures: BrokerFigures | None = None,
    ) -> None:
        """`connections`: those of Kafka clients with this broker. `figures` None: not shown."""
        self._figures = figures
        self._services = services
        self._connections = connections
        self.operations = [
            Operation("GET", "/v1/cluster", "getCluster", "Get the ids of the cluster and broker.",
                      self._get),
            Operation("GET", "/v1/brokers", "listBrokers",
                      "List the live brokers, their addresses and how many partitions each serves,"
                      " with `details` also what each does and its object storage.",
                      self._brokers, {"details": {"type": "boolean"}}),
            Operation("GET", "/v1/moves", "listMoves",
                      "List the partitions that move from one broker to another, or wait for it.",
                      self._list_moves, {**PAGE}),
            Operation("GET", "/v1/connections", "listConnections",
                      "List the Kafka clients that are connected with this broker.",
                      self._list_connections, {**PAGE, **FILTERS}),
        ]  # fmt: skip

    async def _get(self, _call: Call) -> Json:
        return {"cluster_id": self._services.cluster.id, "broker": self._services.cluster.broker_id}

    async def _brokers(self, call: Call) -> Json:
        topics, counts = self._services.topics, dict[int, int]()
        for topic in map(topics.get, topics.names()):
            for number in range(len(topic.partitions)):
                leader = topics.leader(topic, number).broker
                counts[leader] = counts.get(leader, 0) + 1
        figures, failed = dict[int, Json](), dict[int, HeadraceError]()
        if call.query.get("details") and self._figures is not None:
            figures, failed = await self._figures.of_all()
        cluster = self._services.cluster
        return {
            "broker": cluster.broker_id,
            "brokers": [
                {
                    **self._broker(one),
                    "partitions": counts.get(one.id, 0),
                    **({"figures": figures[one.id]} if one.id in figures else {}),
                }
                for one in sorted(cluster.brokers(), key=lambda one: one.id)
            ],
            **failed_brokers(failed),
        }

    def _broker(self, one: BrokerFact) -> Json:
        drain = self._services.reassignments.drain_of(one.id)
        found: Json = {
            "id": one.id,
            "rack": one.rack,
            "started_ms": one.started_ms,
            "is_leaving": bool(one.is_leaving),
            "is_draining": drain is not None,
            "endpoints": [
                {
                    "face": place.face,
                    "listener": place.listener,
                    "address": f"{place.host}:{place.port}",
                    "security": place.security,
                }
                for place in one.endpoints or ()
            ],
        }
        is_known = drain is not None and drain.owned_before >= 0
        return found | ({"owned_before": drain.owned_before} if drain and is_known else {})

    async def _list_moves(self, call: Call) -> Json:
        moves: list[Json] = [
            {
                "place": f"{one.move.topic} {one.move.partition:010d}",
                "topic": one.move.topic,
                "partition": one.move.partition,
                "from": one.move.source,
                "to": one.move.target,
                "reason": one.reason,
            }
            for one in await self._services.reassignments.in_motion()
        ]
        moves.sort(key=lambda one: one["place"])
        count = len(call.rights.shown(moves, "moves"))
        answer = page(moves, "place", call, "moves") | {"count": count}
        for one in answer["moves"]:
            del one["place"]
        return answer

    async def _list_connections(self, call: Call) -> Json:
        found = []
        for one in list(self._connections()):
            session = one.session
            found.append(
                {
                    "address": f"{one.peer}:{one.peer_port}",
                    "listener": session.listener,
                    "principal": None if session.principal is None else str(session.principal),
                    "client_id": session.client_id,
                    "software": session.software_name,
                    "software_version": session.software_version,
                    "throttled_ms": session.throttled_ms,
                    "session": session,
                }
            )
        wanted = {name: call.query[name] for name in FILTERS if name in call.query}
        found = [
            one
            for one in found
            if all((one[name] or "") == value for name, value in wanted.items())
        ]
        found.sort(key=lambda one: one["address"])
        counts = _counts(call.rights.shown(found, "connections"))
        answer = page(found, "address", call, "connections") | {"counts": counts}
        for one in answer["connections"]:  # 16 us each
            one["quotas"] = dict(self._services.quotas.rates(one.pop("session")))
        return answer


def _counts(connections: Iterable[Json]) -> list[Json]:
    """How many connections each software has with each principal, the most first."""
    found: dict[tuple[str, str, str | None], Json] = {}
    for one in connections:
        kind = {name: one[name] for name in ("software", "software_version", "principal")}
        count = found.setdefault(
            (one["software"], one["software_version"], one["principal"]),
            {**kind, "connections": 0, "throttled_ms": 0},
        )
        count["connections"] += 1
        count["throttled_ms"] += one["throttled_ms"]
    return sorted(found.values(), key=lambda one: -int(one["connections"]))[:COUNTS_MAX]
