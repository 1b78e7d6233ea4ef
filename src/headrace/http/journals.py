"""Journals of share groups over HTTP: all that groups did with the records of a partition.

Invariants: parses and encodes; what a journal holds is in `broker/shares/journal_pages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.shares.journal_pages import CHANGES_MAX
from headrace.http.operations import (
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    integer,
    text,
)

if TYPE_CHECKING:
    from headrace.broker.services.services import Services


class JournalOperations:
    """The operation on journals."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/journal/{partition}", "readShareJournal",
                      "Read what share groups did with the records of a partition.",
                      self._read,
                      {"topic": TOPIC, "partition": PARTITION,
                       "limit": integer(1, CHANGES_MAX, default=CHANGES_MAX),
                       "page_token": text(
                           40, 1, pattern="^[0-9]{1,18}[.][0-9]{1,18}$",
                           description="`next_page_token` of the page before.")}),
        ]  # fmt: skip

    async def _read(self, call: Call) -> Json:
        topic, number = self._services.topics.get(call.path["topic"]), call.path["partition"]
        position, _, skipped = call.query.get("page_token", "0.0").partition(".")
        limit = call.query.get("limit", CHANGES_MAX)
        page = await self._services.journals.page(
            topic, number, (int(position), int(skipped)), limit
        )
        answer: Json = {
            "topic": topic.name,
            "partition": number,
            "changes": [
                {
                    "position": one.position,
                    "at_ms": one.at_ms,
                    "group": one.group_id,
                    "event": one.event,
                    "first": one.first,
                    "last": one.last,
                    "deliveries": one.deliveries,
                }
                for one in page.changes
            ],
            "first_position": page.first_position,
        }
        if page.next is not None:
            answer["next_page_token"] = f"{page.next[0]}.{page.next[1]}"
        return answer
