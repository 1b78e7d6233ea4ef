"""Topics that tenants share, over HTTP: shared by their owners, accepted by their readers.

Invariants: `broker/services/topic_shares` decides. A client of a tenant names its own topics as
everywhere; another tenant's topic is written `acme/orders` by everybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.services.topic_shares import TopicShares
from headrace.http.operations import (
    DRY_RUN,
    PAGE,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    page,
    text,
)
from headrace.records.tenant_names import TENANT, key_of, tenant_of, written

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

_SHARED, _ACCEPTED = "/v1/shared-topics", "/v1/accepted-topics"
_READER: Final = text(32, 1, pattern=f"^{TENANT}$", description="The tenant that may read it.")
_SOURCE: Final = TOPIC | {"description": "The topic of another tenant, such as acme/orders."}


class TopicShareOperations:
    """The operations on topics that tenants share."""

    def __init__(self, services: Services) -> None:
        self._services = services
        one = {"topic": TOPIC, "reader": _READER, "dry_run": DRY_RUN}
        named: dict[str, Schema] = {"topic": TOPIC, "dry_run": DRY_RUN}
        self.operations = [
            Operation("GET", _SHARED, "listSharedTopics", "List topics that tenants may read.",
                      self._list_shared, PAGE),
            Operation("POST", _SHARED, "shareTopic", "Let a tenant read a topic of another.",
                      self._share, {"dry_run": DRY_RUN},
                      fields(("topic", "reader"), topic=TOPIC, reader=_READER)),
            Operation("DELETE", f"{_SHARED}/{{topic}}/readers/{{reader}}", "unshareTopic",
                      "Let a tenant read a topic no longer.", self._unshare, one),
            Operation("GET", _ACCEPTED, "listAcceptedTopics",
                      "List topics of other tenants, by the names that their readers have.",
                      self._list_accepted, PAGE),
            Operation("POST", _ACCEPTED, "acceptTopic",
                      "Give a topic that another tenant shares a name of the reader's.",
                      self._accept, {"dry_run": DRY_RUN},
                      fields(("topic", "source"), topic=TOPIC, source=_SOURCE)),
            Operation("DELETE", f"{_ACCEPTED}/{{topic}}", "leaveTopic",
                      "Have a name stand for no topic of another tenant.", self._leave, named),
        ]  # fmt: skip

    def _of(self, call: Call) -> str | None:
        """The client's tenant; None: an operator, who sees all."""
        return tenant_of(call.view.prefix) if call.view.prefix else None

    async def _list_shared(self, call: Call) -> Json:
        found = [
            {"id": f"{topic} {reader}", "topic": topic, "reader": reader, "exists": exists}
            for topic, reader, exists in TopicShares(self._services).shared(self._of(call))
        ]
        answer = page(found, "id", call, "topics")
        answer["topics"] = [
            {name: value for name, value in one.items() if name != "id"} for one in answer["topics"]
        ]
        return answer

    async def _share(self, call: Call) -> Json:
        topic, reader = call.body["topic"], call.body["reader"]
        shares = TopicShares(self._services)
        await shares.share(topic, reader, is_dry_run=call.is_dry_run)
        return {"topic": topic, "reader": reader, "dry_run": call.is_dry_run}

    async def _unshare(self, call: Call) -> Json:
        topic, reader = call.path["topic"], call.path["reader"]
        shares = TopicShares(self._services)
        existed = await shares.unshare(topic, reader, is_dry_run=call.is_dry_run)
        return {"topic": topic, "reader": reader, "existed": existed, "dry_run": call.is_dry_run}

    async def _list_accepted(self, call: Call) -> Json:
        found = [
            {"topic": topic, "source": source, "is_shared": is_shared}
            for topic, source, is_shared in TopicShares(self._services).accepted(self._of(call))
        ]
        return page(found, "topic", call, "topics")

    async def _accept(self, call: Call) -> Json:
        topic, source = call.body["topic"], key_of(call.body["source"])
        call.body["source"] = written(source)  # in the audit log, it is no key of its owner's
        is_operator = self._of(call) is None
        await TopicShares(self._services).accept(
            topic, source, is_operator=is_operator, is_dry_run=call.is_dry_run
        )
        return {"topic": topic, "source": written(source), "dry_run": call.is_dry_run}

    async def _leave(self, call: Call) -> Json:
        topic = call.path["topic"]
        existed = await TopicShares(self._services).leave(topic, is_dry_run=call.is_dry_run)
        return {"topic": topic, "existed": existed, "dry_run": call.is_dry_run}
