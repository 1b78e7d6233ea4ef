"""Dead letters over HTTP: by cause, one by one, edited, and taken back after a redrive.

Invariants: parses and encodes; the rules are in `broker/services/letter_desk`. What one call reads
is bounded, and its answer says whether that was all. A change of a letter is in the audit log with
its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.coordinators.group_config import DEAD_LETTER_TOPIC
from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.services.letter_desk import (
    SCAN_RECORDS_MAX,
    LetterChange,
    Place,
    PlacedLetter,
    Scan,
    Sent,
    editable_headers,
)
from headrace.errors import HeadraceError, RequestInvalid
from headrace.http.operations import (
    DRY_RUN,
    INT64_MAX,
    LIMIT_DEFAULT,
    OFFSET,
    PAGE,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    needing,
    page,
    text,
)
from headrace.http.problems import Contradiction, details
from headrace.http.records import content_fields, parsed_content, shown, shown_header
from headrace.http.search import failed_places
from headrace.log.visibility import READ_UNCOMMITTED
from headrace.records.letters import EDITED, Letter, letter_of, text_of
from headrace.records.tenant_names import name_in, sibling
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.http.schemas import Schema
    from headrace.records.codec import Record

RECORDS: Final = 10_000
COUNTED_AT_ONCE: Final = 16
"""Topics whose owners are asked at the same time."""
CAUSES_MAX: Final = 500
SAMPLES_MAX: Final = 3
TEXT_LENGTH_MAX: Final = 500
TAKEN_MAX: Final = 1_000
_PLACE: Final = "([0-9]{1,7}):([0-9]{1,18})"
_SENT_TO: Final = f"{TOPIC['pattern'].removesuffix('$')}-{_PLACE}$"
LETTER: Final = text(26, 3, pattern=f"^{_PLACE}$")
"""A letter's partition and offset."""


class Cause(NamedTuple):
    """What dead letters have in common."""

    origin: str
    group: str
    reason: str
    format: str


def cause_of(letter: Letter) -> Cause:
    """The cause, its texts cut."""
    texts = letter.topic, letter.consumer, letter.reason, letter.format
    return Cause(*(one[:TEXT_LENGTH_MAX] for one in texts))


class DeadLetterOperations:
    """The operations on dead letters."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._desk = services.desk
        topic = "/v1/dead-letters/{topic}"
        named: dict[str, Schema] = {"topic": TOPIC}
        bound = {"records": integer(1, SCAN_RECORDS_MAX, default=RECORDS)}
        filters = {name: text(8_000) for name in ("origin", "group", "reason")}
        filters |= {
            "since_ms": integer(0, INT64_MAX, description="Only messages of this time or later."),
            "until_ms": integer(0, INT64_MAX, description="Only messages of an earlier time."),
        }
        edit = fields(
            ["partition", "offset"], partition=PARTITION, offset=OFFSET, **content_fields()
        )
        edit["anyOf"] = [needing(name) for name in ("key", "value", "headers")]
        sent = fields(["letter", "to"], letter=LETTER, to=text(314, 5, pattern=_SENT_TO))
        self.operations = [
            Operation("GET", "/v1/dead-letters", "listDeadLetterTopics",
                      "List the topics that share groups name for their dead letters.",
                      self._list, {**PAGE}),
            Operation("GET", topic, "summarizeDeadLetters",
                      "Count dead letters that were not sent back, by origin, consumer and reason.",
                      self._summarize, named | bound),
            Operation("GET", f"{topic}/letters", "listDeadLetters",
                      "List dead letters that were not sent back, with their edits.",
                      self._letters,
                      {**named, **bound, **filters, **PAGE, "page_token": LETTER}),
            Operation("GET", f"{topic}/letters/{{partition}}/{{offset}}", "getDeadLetter",
                      "Get a dead letter as it is now, and as it was given up.",
                      self._letter, {**named, "partition": PARTITION, "offset": OFFSET}),
            Operation("POST", f"{topic}/edits", "editDeadLetter",
                      "Edit a dead letter: its redrive sends what it is then.", self._edit,
                      named | {"dry_run": DRY_RUN}, edit),
            Operation("POST", f"{topic}/take-back", "takeBackDeadLetters",
                      "Take back records that were sent back and not delivered yet.",
                      self._take_back, named | {"dry_run": DRY_RUN},
                      fields(["sent"], sent=listing(sent, TAKEN_MAX, 1))),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        topics = self._services.topics
        names = sorted(self._services.configurations.group_values(DEAD_LETTER_TOPIC))
        known = {name: topic for name in names if (topic := topics.find(name)) is not None}
        found: list[Json] = [
            {"name": name, "partitions": len(topic.partitions)} for name, topic in known.items()
        ]
        answer = page(found, "name", call, "topics")
        failed: dict[tuple[str, int], HeadraceError] = {}
        shown = answer["topics"]
        for at in range(0, len(shown), COUNTED_AT_ONCE):
            part = shown[at : at + COUNTED_AT_ONCE]
            counts = (self._count(item, known[item["name"]]) for item in part)
            for item, errors in zip(part, await gather_charged(counts), strict=True):
                failed |= {(item["name"], number): error for number, error in errors.items()}
        return answer | failed_places(failed)

    async def _count(self, item: Json, topic: Topic) -> dict[int, HeadraceError]:
        """Add how many records a topic has on all brokers; returns why partitions are left out."""
        ends = await self._services.reads.ends(
            topic, range(len(topic.partitions)), READ_UNCOMMITTED
        )
        item["records"] = 0
        errors: dict[int, HeadraceError] = {}
        for number, end in ends.items():
            if isinstance(end, HeadraceError):
                errors[number] = end
            else:
                item["records"] += end.end_offset - end.start_offset
        return errors

    async def _summarize(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        scan, summary = Scan(call.query.get("records", RECORDS)), _Summary(topic.name)
        async for one in self._desk.scan(topic, scan):
            replaced = one.replaces
            if replaced is None:
                summary.add(one.partition, one.record)
            else:
                summary.edits += 1
        return {
            "topic": topic.name,
            "records": summary.count,
            "edits": summary.edits,
            "is_complete": scan.is_complete and len(summary.causes) < CAUSES_MAX,
            "causes": sorted(summary.causes.values(), key=lambda one: -one["count"]),
        }

    # --- letters -----------------------------------------------------------------------------

    async def _letters(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        scan, query = Scan(call.query.get("records", RECORDS)), call.query
        origin = query.get("origin")
        limit = query.get("limit", LIMIT_DEFAULT)
        after = _place(query["page_token"]) if "page_token" in query else Place(-1, -1)

        def is_wanted(record: Record, letter: Letter) -> bool:
            cause = cause_of(letter)
            return (
                query.get("since_ms", 0) <= record.timestamp_ms < query.get("until_ms", INT64_MAX)
                and (origin is None or name_in(origin) == name_in(cause.origin))
                and name_in(query.get("group", cause.group)) == name_in(cause.group)
                and query.get("reason", "") in letter.reason
            )

        found = await self._desk.letters(topic, scan, is_wanted, after, limit + 1)
        answer: Json = {"topic": topic.name, "letters": [_shown(one) for one in found[:limit]]}
        if len(found) > limit:
            answer["next_page_token"] = str(found[limit - 1].place)
        return answer | {"is_complete": scan.is_complete}

    async def _letter(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        place = Place(call.path["partition"], call.path["offset"])
        return {"topic": topic.name, **_shown(await self._desk.letter(topic, place))}

    async def _edit(self, call: Call) -> Json:
        topic, body = self._services.topics.get(call.path["topic"]), call.body
        place = Place(body["partition"], body["offset"])
        try:
            change = LetterChange(*parsed_content(body))
        except RequestInvalid as error:  # each field was right: they do not go together
            raise Contradiction(str(error)) from error
        who = str(call.session.principal)
        before, after, changed = await self._desk.edit(
            topic, place, change, who, is_dry_run=call.is_dry_run
        )
        if not call.is_dry_run:
            self._note(call, "editDeadLetter", [f"{topic.name} {place}"])
        edited = PlacedLetter(place, after, letter_of(after.headers))
        return {
            "topic": topic.name,
            "changed": changed,
            "before": _shown(before),
            "after": _shown(edited),
        }

    def _note(self, call: Call, request: str, places: list[str], failed: int = 0) -> None:
        self._services.audit.changed(call.session, request, places, failed)

    async def _take_back(self, call: Call) -> Json:
        topics, letters = self._services.topics, call.body["sent"]
        topic = topics.get(call.path["topic"])
        results: list[Json] = [{**one} for one in letters]
        asked: dict[int, Sent] = {}
        for number, one in enumerate(letters):
            try:
                target, place = _sent_to(one["to"])
                for right in (Right.READ, Right.WRITE):
                    call.rights.require(right, ResourceType.TOPIC, target)
                await topics.look_up(target)
                found = topics.get(target)
                found.check_partition(place.partition)
                asked[number] = Sent(_place(one["letter"]), found, place)
            except HeadraceError as error:
                results[number] |= {"taken_back": False, "error": details(error)}
        outcomes = await self._desk.take_back(topic, [*asked.values()], is_dry_run=call.is_dry_run)
        for number, outcome in zip(asked, outcomes, strict=True):
            results[number]["taken_back"] = outcome.is_taken
            if outcome.is_taken:
                results[number]["groups"] = [*outcome.groups]
            else:
                group = outcome.group
                may = not group or call.rights.may(Right.DESCRIBE, ResourceType.GROUP, group)
                results[number]["reason"] = outcome.reason_for(may_see_group=may)
        taken = [f"{topic.name} {one['letter']}" for one in results if one["taken_back"]]
        if not call.is_dry_run:
            failed = len(results) - len(taken)
            self._note(call, "takeBackDeadLetters", taken or [topic.name], failed)
        return {
            "topic": topic.name,
            "dry_run": call.is_dry_run,
            "taken_back": len(taken),
            "results": results,
        }


def _place(given: str) -> Place:
    """A place that its schema allows."""
    partition, offset = given.split(":")
    return Place(int(partition), int(offset))


def _sent_to(given: str) -> tuple[str, Place]:
    """A topic and a place that their schema allows."""
    name, place = given.rsplit("-", 1)
    return name, _place(place)


def _shown(one: PlacedLetter) -> Json:
    record, letter = one.record, one.letter
    found: Json = {
        "partition": one.place.partition,
        "letter_offset": one.place.offset,
        "origin": letter.topic or None,
        "origin_partition": _known(letter.partition),
        "origin_offset": _known(letter.offset),
        "group": letter.consumer or None,
        "reason": letter.reason[:TEXT_LENGTH_MAX],
        "cause": letter.cause[:TEXT_LENGTH_MAX] or None,
        "stage": letter.stage[:TEXT_LENGTH_MAX] or None,
        "format": letter.format or None,
        "deliveries": _known(letter.deliveries),
        "redrives": letter.redrives,
        "edits": [text_of(value) for name, value in record.headers if name == EDITED],
    }
    own = [shown_header(name, value) for name, value in editable_headers(record.headers)]
    return found | {"record": shown(record), "own_headers": own}


def _known(number: int) -> int | None:
    return None if number < 0 else number


class _Summary:
    """The causes so far."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.count = 0
        self.edits = 0
        self.causes: dict[Cause, Json] = {}

    def _key(self, name: str) -> str | None:
        """Letters name what is of their own tenant; what they say of another's is not shown."""
        return (name and sibling(self._topic, name_in(name))) or None

    def add(self, partition: int, record: Record) -> None:
        """Count one dead letter."""
        self.count += 1
        letter = letter_of(record.headers)
        cause = cause_of(letter)
        known: Any = self.causes.get(cause)
        if known is None:
            if len(self.causes) >= CAUSES_MAX:
                return
            known = self.causes[cause] = {
                "origin": self._key(cause.origin),
                "group": self._key(cause.group),
                "reason": cause.reason,
                "format": cause.format or None,
                "count": 0,
                "first_ms": record.timestamp_ms,
                "last_ms": record.timestamp_ms,
                "deliveries_max": 0,
                "redrives_max": 0,
                "samples": [],
            }
        known["count"] += 1
        known["first_ms"] = min(known["first_ms"], record.timestamp_ms)
        known["last_ms"] = max(known["last_ms"], record.timestamp_ms)
        known["deliveries_max"] = max(known["deliveries_max"], letter.deliveries)
        known["redrives_max"] = max(known["redrives_max"], letter.redrives)
        if len(known["samples"]) < SAMPLES_MAX:
            known["samples"].append({"partition": partition, "offset": record.offset})
