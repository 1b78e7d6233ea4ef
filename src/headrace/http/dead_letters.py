"""Dead letters over HTTP, by cause: what was given up, where it came from, by whom and why.

Invariants: reads only, from where the topic's redrives ended; what one call reads is bounded, and
its answer says whether that was all. Headers of Kafka's share groups (KIP-1191), Spring Kafka and
Kafka Connect are read; a header that is no text is shown with replacement characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.coordinators.group_config import DEAD_LETTER_TOPIC
from headrace.broker.services.reads import AT_OFFSET, AT_START, Start
from headrace.broker.shares.dead_letters import H_DELIVERIES, H_GROUP, H_MESSAGE, H_TOPIC
from headrace.errors import GroupUnknown, OffsetOutOfRange
from headrace.http.access import REDRIVE_PREFIX
from headrace.http.operations import PAGE, TOPIC, Call, Json, Operation, integer, page
from headrace.log.visibility import READ_COMMITTED

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.records.codec import Record

RECORDS_MAX: Final = 100_000
RECORDS: Final = 10_000
READ_RECORDS: Final = 1_000
CAUSES_MAX: Final = 500
SAMPLES_MAX: Final = 3
TEXT_LENGTH_MAX: Final = 500


class _Format(NamedTuple):
    """The names of headers that one system writes; empty: it has none."""

    name: str
    topic: str
    group: str
    reason: str
    deliveries: str = ""


_FORMATS: Final = (
    _Format("share group", H_TOPIC, H_GROUP, H_MESSAGE, H_DELIVERIES),
    _Format("Spring", "kafka_dlt-original-topic", "kafka_dlt-original-consumer-group",
            "kafka_dlt-exception-message", "kafka_deliveryAttempt"),
    _Format("Connect", "__connect.errors.topic", "__connect.errors.connector.name",
            "__connect.errors.exception.message"),
)  # fmt: skip
_UNKNOWN: Final = _Format("", "", "", "")


class Cause(NamedTuple):
    """What dead letters have in common."""

    origin: str
    group: str
    reason: str
    format: str


def cause_of(record: Record) -> tuple[Cause, int]:
    """(the cause, how often the record was delivered; 0: not said)."""
    headers = dict(record.headers)
    kind = next((one for one in _FORMATS if one.topic in headers), _UNKNOWN)

    def said(name: str) -> str:
        return (headers.get(name) or b"").decode("utf-8", "replace")[:TEXT_LENGTH_MAX]

    digits = said(kind.deliveries)
    count = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    return Cause(said(kind.topic), said(kind.group), said(kind.reason), kind.name), count


class DeadLetterOperations:
    """The operations on dead letters."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.operations = [
            Operation("GET", "/v1/dead-letters", "listDeadLetterTopics",
                      "List the topics that share groups name for their dead letters.",
                      self._list, {**PAGE}),
            Operation("GET", "/v1/dead-letters/{topic}", "summarizeDeadLetters",
                      "Count dead letters that were not sent back, by origin, consumer and reason.",
                      self._summarize,
                      {"topic": TOPIC, "records": integer(1, RECORDS_MAX, default=RECORDS)}),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        topics = self._services.topics
        names = sorted(self._services.configurations.group_values(DEAD_LETTER_TOPIC))
        found: list[Json] = []
        for name in names:
            topic = topics.find(name)
            if topic is not None:
                ends = [one.offsets for one in topics.describe(topic) if one.offsets]
                count = sum(end - start for start, end in ends)
                found.append({"name": name, "records": count, "partitions": len(topic.partitions)})
        return page(found, "name", call, "topics")

    async def _summarize(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        summary = _Summary(call.query.get("records", RECORDS))
        starts = await self._redriven(topic)
        is_complete = True
        for number in range(len(topic.partitions)):
            is_complete &= await self._read(topic, number, starts.get(number), summary)
        return {
            "topic": topic.name,
            "records": summary.count,
            "is_complete": is_complete and len(summary.causes) < CAUSES_MAX,
            "causes": sorted(summary.causes.values(), key=lambda one: -one["count"]),
        }

    async def _redriven(self, topic: Topic) -> dict[int, int]:
        """Where redrives of the topic ended, by partition."""
        try:
            offsets = await self._services.all_groups.offsets(f"{REDRIVE_PREFIX}{topic.name}")
        except GroupUnknown:
            return {}
        return {one.partition: one.offset for one in offsets if one.topic == topic.name}

    async def _read(self, topic: Topic, number: int, first: int | None, summary: _Summary) -> bool:
        """Add a partition's records. Returns whether these were all."""
        start = Start(AT_START) if first is None else Start(AT_OFFSET, first)
        while True:
            wanted = min(READ_RECORDS, summary.left)
            try:
                found = await self._services.reads.read(
                    topic, number, start, wanted, READ_COMMITTED
                )
            except OffsetOutOfRange:  # what was redriven is deleted by now
                start = Start(AT_START)
                continue
            for record in found.records:
                summary.add(number, record)
            if found.next_offset >= found.end_offset:
                return True
            if summary.left == 0 or found.is_empty:
                return False
            start = Start(AT_OFFSET, found.next_offset)


class _Summary:
    """The causes so far."""

    def __init__(self, records_max: int) -> None:
        self.left = records_max
        self.count = 0
        self.causes: dict[Cause, Json] = {}

    def add(self, partition: int, record: Record) -> None:
        """Count one dead letter."""
        self.left -= 1
        self.count += 1
        cause, deliveries = cause_of(record)
        known: Any = self.causes.get(cause)
        if known is None:
            if len(self.causes) >= CAUSES_MAX:
                return
            known = self.causes[cause] = {
                "origin": cause.origin or None,
                "group": cause.group or None,
                "reason": cause.reason,
                "format": cause.format or None,
                "count": 0,
                "first_ms": record.timestamp_ms,
                "last_ms": record.timestamp_ms,
                "deliveries_max": 0,
                "samples": [],
            }
        known["count"] += 1
        known["first_ms"] = min(known["first_ms"], record.timestamp_ms)
        known["last_ms"] = max(known["last_ms"], record.timestamp_ms)
        known["deliveries_max"] = max(known["deliveries_max"], deliveries)
        if len(known["samples"]) < SAMPLES_MAX:
            known["samples"].append({"partition": partition, "offset": record.offset})
