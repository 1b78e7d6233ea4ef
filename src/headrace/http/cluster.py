"""The cluster that a broker belongs to, over HTTP.

Invariants: reads only. Clients that know a cluster by its Kafka address compare its id with this
one before they change anything over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.http.operations import Call, Json, Operation

if TYPE_CHECKING:
    from headrace.broker.services.services import Services


class ClusterOperations:
    """The operations on the cluster."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.operations = [
            Operation("GET", "/v1/cluster", "getCluster", "Get the ids of the cluster and broker.",
                      self._get),
        ]  # fmt: skip

    async def _get(self, _call: Call) -> Json:
        return {"cluster_id": self._services.cluster.id, "broker": self._services.cluster.broker_id}
