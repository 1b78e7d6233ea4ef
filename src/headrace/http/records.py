"""Records over HTTP: write them, read them by offset or time, follow a topic as it grows.

Invariants: parses and encodes; `broker/services/record_sends` and `reads` do the rest, of whichever
brokers own the partitions. `read_committed` unless asked otherwise. What one request reads, and how
many follow at once, is bounded; a follower that reads slowly is sent less, never buffered.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse

from headrace.broker.security.tenant_shares import SharedPlaces
from headrace.broker.services.reads import AT_END, AT_OFFSET, AT_START, AT_TIME, Start
from headrace.broker.services.record_sends import ANY, Outgoing
from headrace.coordination.quotas.entities import CONSUMER, PRODUCER
from headrace.errors import HeadraceError, RequestInvalid
from headrace.http.decoded import DECODE, add_decoded, check_decode
from headrace.http.event_streams import EventStream, event
from headrace.http.login_watch import LOGIN_CHECK_S
from headrace.http.operations import (
    INT64_MAX,
    OFFSET,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    as_lines,
    fields,
    integer,
    listing,
    text,
    wants_lines,
)
from headrace.http.problems import Contradiction, details
from headrace.log.appended import STORED
from headrace.log.visibility import READ_COMMITTED, READ_UNCOMMITTED
from headrace.records.codec import Record, header_name, header_name_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from starlette.responses import Response

    from headrace.broker.services.reads import Follower, PartitionRead
    from headrace.broker.services.record_sends import Sent
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema
    from headrace.records.bodies import Body

RECORDS_MAX: Final = 1_000
HEADERS_MAX: Final = 100
TEXT_LENGTH_MAX: Final = 4 * 1024 * 1024
WAIT_MS_MAX: Final = 60_000
FOLLOWERS_MAX: Final = 64
KEEP_ALIVE_S: Final = 15.0
PLACES_MAX: Final = 256
"""Partitions whose position a follower gets, in a header of its next request (16 KiB)."""
PLACE_LENGTH_MAX: Final = 64 + PLACES_MAX * 26
FOLLOWED_RECORDS: Final = 100
"""Of one partition before the next one has its turn."""
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""
ISOLATION: Final = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}


class RecordOperations:
    """The operations on records."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reads = services.reads
        self._followers = SharedPlaces("clients that follow topics", FOLLOWERS_MAX)
        path = "/v1/topics/{topic}"
        named: dict[str, Schema] = {"topic": TOPIC}
        isolation = {"type": "string", "enum": [*ISOLATION]}
        reading = {
            "partition": PARTITION,
            "offset": OFFSET,
            "timestamp_ms": integer(0, INT64_MAX),
            "max": integer(1, RECORDS_MAX, default=100),
            "wait_ms": integer(0, WAIT_MS_MAX, default=0),
            "isolation": isolation,
            **DECODE,
        }
        following = {
            "partition": PARTITION,
            "from": {"type": "string", "enum": ["latest", "earliest"], "default": "latest"},
            "isolation": isolation,
            "after": text(PLACE_LENGTH_MAX, description="Continue after this event."),
        }
        after = {"last-event-id": text(PLACE_LENGTH_MAX, description="Continue after this event.")}
        self.operations = [
            Operation("POST", f"{path}/records", "produce",
                      "Append records; returns a result for each.",
                      self._produce, named, fields(["records"], records=listing(
                          _record_schema(), RECORDS_MAX, 1)), lines="records", quota=PRODUCER),
            Operation("GET", f"{path}/records", "readRecords",
                      "Read a partition from an offset or a time; waits for the first record.",
                      self._read_records, named | reading, quota=CONSUMER),
            Operation("GET", f"{path}/tail", "followTopic",
                      "Stream new records as server-sent events.", self._follow,
                      named | following, headers=after, media_type="text/event-stream"),
        ]  # fmt: skip

    # --- produce -----------------------------------------------------------------------------

    async def _produce(self, call: Call) -> Response:
        topic = self._services.topics.get(call.path["topic"])
        now_ms = self._services.appends.clock.now_ms()
        results: list[Json] = [{} for _ in call.body["records"]]
        outgoing: dict[int, Outgoing] = {}
        for place, item in enumerate(call.body["records"]):
            try:
                outgoing[place] = Outgoing(_record(item, now_ms), int(item.get("partition", ANY)))
            except HeadraceError as error:
                results[place] = {"ok": False, "error": details(error)}
        outcomes = await self._services.sends.send(topic, [*outgoing.values()])
        for place, outcome in zip(outgoing, outcomes, strict=True):
            results[place] = _sent(outcome)
        if wants_lines(call.request):
            return as_lines(call.shown(results))
        return JSONResponse({"topic": topic.name, "results": results})

    # --- read --------------------------------------------------------------------------------

    async def _read_records(self, call: Call) -> Json | Response:
        query = call.query
        if "offset" in query and "timestamp_ms" in query:
            raise Contradiction("give an offset or a time, not both")
        check_decode(self._services, call)
        topic = self._services.topics.readable.get(call.path["topic"])
        number = query.get("partition", 0)
        start = Start(AT_START)
        if "timestamp_ms" in query:
            start = Start(AT_TIME, query["timestamp_ms"])
        elif "offset" in query:
            start = Start(AT_OFFSET, query["offset"])
        isolation = ISOLATION[query.get("isolation", "read_committed")]
        found = await self._reads.read(
            *(topic, number, start, query.get("max", 100), isolation),
            query.get("wait_ms", 0) / 1000,
            call.room,
        )
        records = [shown(record) for record in found.records]
        names = [topic.name] * len(records)
        await add_decoded(self._services, call, names, found.records, records)
        if wants_lines(call.request):
            extra = {"Headrace-Next-Offset": str(found.next_offset)}
            if found.unreadable:
                ranges = (f"{first}-{last}" for first, last, _ in found.unreadable)
                extra["Headrace-Unreadable"] = ",".join(ranges)
            return as_lines(records, **extra)
        answer: Json = {
            "topic": topic.name,
            "partition": number,
            "records": records,
            "next_offset": found.next_offset,
            "start_offset": found.start_offset,
            "end_offset": found.end_offset,
        }
        if found.unreadable:
            answer["unreadable"] = [_unreadable(*one) for one in found.unreadable]
        return answer

    # --- follow ------------------------------------------------------------------------------

    async def _follow(self, call: Call) -> Response:
        topic = self._services.topics.readable.get(call.path["topic"])
        isolation = ISOLATION[call.query.get("isolation", "read_committed")]
        numbers = [call.query["partition"]] if "partition" in call.query else None
        # Before anything is waited for: requests come in bursts.
        released = self._followers.take(call.holder)
        try:
            kind = AT_END if call.query.get("from", "latest") == "latest" else AT_START
            given = call.request.headers.get("last-event-id", call.query.get("after", ""))
            after = _offsets_of(given, topic.id.hex)
            follower = await self._reads.follow(topic, kind, isolation, numbers, after)
        except BaseException:
            released()
            raise
        return EventStream(self._events(follower, call, topic.id.hex), released)

    async def _events(self, follower: Follower, call: Call, run: str) -> AsyncIterator[bytes]:
        quotas = self._services.quotas
        try:
            yield b": follows\n\n"
            events: Iterator[bytes] = iter([_place(follower, run)])
            while True:
                is_quiet = True
                for encoded in events:
                    is_quiet = False
                    throttle_ms = quotas.take(call.session, CONSUMER, len(encoded))
                    yield encoded
                    if throttle_ms:
                        await quotas.wait_paid(call.session, CONSUMER, throttle_ms)
                        call.check_again()
                if is_quiet:
                    yield b": still there\n\n"
                events = _events_of(await self._next(follower, call), follower, run)
        except HeadraceError as error:  # the head of the response was sent: say it in the stream
            yield event("problem", call.shown(details(error)))

    @staticmethod
    async def _next(follower: Follower, call: Call) -> Mapping[int, PartitionRead]:
        """What comes next, nothing if that takes long. Raises the error of a partition, and what
        `check_again` raises: rights may be withdrawn, and the login may end, meanwhile."""
        left_s = KEEP_ALIVE_S
        while True:
            followed = await follower.next(FOLLOWED_RECORDS, min(left_s, LOGIN_CHECK_S))
            call.check_again()
            left_s -= LOGIN_CHECK_S
            if left_s <= 0 or not all(found.is_empty for found in followed.values()):
                return followed


def _events_of(
    followed: Mapping[int, PartitionRead], follower: Follower, run: str
) -> Iterator[bytes]:
    """What was read, and the place after it; nothing if nothing was."""
    for number, found in followed.items():
        for batch in found.unreadable:
            yield event("unreadable", {"partition": number, **_unreadable(*batch)})
        for record in found.records:
            yield event("record", {"partition": number, **shown(record)})
    if not all(found.is_empty for found in followed.values()):
        yield _place(follower, run)


def _place(follower: Follower, run: str) -> bytes:
    """Where a follower is, as an event whose id continues there. One of too many partitions for an
    id begins at the end when it comes back."""
    offsets = follower.offsets
    if len(offsets) > PLACES_MAX:
        return b": no place\n\n"
    places = ",".join(f"{number}:{offset}" for number, offset in offsets.items())
    return event("place", {}, f"{run}-{places}")


def _offsets_of(event_id: str, run: str) -> dict[int, int]:
    """The offsets that an event's id names; none if it is that of another topic of this name."""
    if not re.fullmatch(rf"{run}-\d{{1,6}}:\d{{1,18}}(,\d{{1,6}}:\d{{1,18}})*", event_id, re.ASCII):
        return {}
    places = (one.split(":") for one in event_id.partition("-")[2].split(","))
    return {int(number): int(offset) for number, offset in places}


def _unreadable(first: int, last: int, reason: str) -> Json:
    """A stored batch that cannot be decoded, as clients see it."""
    return {"offset": first, "last_offset": last, "reason": reason}


# --- records as JSON -------------------------------------------------------------------------


def _sent(outcome: Sent | HeadraceError) -> Json:
    """The result of one record."""
    if isinstance(outcome, HeadraceError):
        return {"ok": False, "error": details(outcome)}
    offset, state, *_timer = outcome.place
    found: Json = {"ok": True, "partition": outcome.partition}
    found["offset"] = offset if offset >= 0 else None
    if state != STORED:
        found["state"] = state
    if outcome.receipt is not None:
        found["receipt"] = outcome.receipt
    return found


def _record_schema() -> Schema:
    data = text(TEXT_LENGTH_MAX)
    return fields(
        key=data,
        key_encoding={"type": "string", "enum": ["text", "base64"], "default": "text"},
        value={"description": "Text, or with value_encoding json any JSON; absent: null."},
        value_encoding={"type": "string", "enum": ["text", "base64", "json"], "default": "text"},
        headers=listing(listing({"oneOf": [text(32_000), {"type": "null"}]}, 4, 2), HEADERS_MAX),
        partition=PARTITION,
        timestamp_ms=integer(0, TIMESTAMP_MS_MAX),
    )


def _record(item: Json, now_ms: int) -> Record:
    """Raises RequestInvalid."""
    key = item.get("key")
    return Record(
        0,
        int(item.get("timestamp_ms", now_ms)),
        None if key is None else _bytes(key, item.get("key_encoding", "text"), "key"),
        _bytes(item["value"], item.get("value_encoding", "text"), "value")
        if "value" in item
        else None,
        [_header(one) for one in item.get("headers", ())],
    )


def _header(item: list[str | None]) -> tuple[str, bytes | None]:
    """A header that is given as [name, value, encoding of the value, encoding of the name].

    Raises RequestInvalid.
    """
    name, value, *encodings = item
    if not {*encodings} <= {"text", "base64"}:
        raise RequestInvalid(
            "the third and fourth element of a header, the encodings of its value and of its name,"
            " must be text or base64"
        )
    if name is None:
        raise RequestInvalid("the name of a header must not be null")
    of_value, of_name, *_ = (*encodings, "text", "text")
    data = None if value is None else _bytes(value, str(of_value), "header")
    return header_name(_bytes(name, str(of_name), "header")), data


def _bytes(value: Any, encoding: str, name: str) -> bytes:
    if encoding == "json":
        return _json_bytes(value)
    if not isinstance(value, str):
        raise RequestInvalid(f"a {name} is text: give {name}_encoding for another form")
    try:
        return value.encode() if encoding == "text" else base64.b64decode(value, validate=True)
    except ValueError as error:
        raise RequestInvalid(f"a {name} is no {encoding}: {error}"[:200]) from error


def _json_bytes(value: Any) -> bytes:
    """Compact JSON. Raises RequestInvalid where it is too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape alone
        return json.dumps(value, separators=(",", ":")).encode()
    except RecursionError as error:
        raise RequestInvalid("a value is nested too deeply to be stored as JSON") from error


def shown(record: Record) -> Json:
    """A record for a response: text where it is UTF-8, else base64, named in `*_encoding`."""
    found: Json = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    return found | shown_content(record)


def shown_content(content: Record | Body) -> Json:
    """Key, value and headers for a response."""
    found: Json = {"headers": [shown_header(name, value) for name, value in content.headers]}
    for name, data in (("key", content.key), ("value", content.value)):
        found[name], is_text = as_text(data)
        if not is_text:
            found[f"{name}_encoding"] = "base64"
    return found


def shown_header(name: str, value: bytes | None) -> list[str | None]:
    """A header for a response: [name, value], and after it the encodings that the value and the
    name need."""
    shown_value, is_text = as_text(value)
    shown_name, name_is_text = as_text(header_name_bytes(name))
    if not name_is_text:
        return [shown_name, shown_value, "text" if is_text else "base64", "base64"]
    return [name, shown_value] if is_text else [name, shown_value, "base64"]


def as_text(data: bytes | None) -> tuple[str | None, bool]:
    """(as text, True), or (in base64, False) where it is no UTF-8."""
    if data is None:
        return None, True
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), False


def content_fields() -> dict[str, Schema]:
    """The schema of what may change in a record: each that is given, replaces what there is."""
    schema: dict[str, Schema] = dict(_record_schema()["properties"])
    names = ("key_encoding", "value", "value_encoding", "headers")
    key: Schema = {"oneOf": [text(TEXT_LENGTH_MAX), {"type": "null"}]}
    return {"key": key} | {name: schema[name] for name in names}


def parsed_content(
    body: Json,
) -> tuple[dict[str, bytes | None], list[tuple[str, bytes | None]] | None]:
    """(the key and value that are given, the headers; None: they stay). A value of null is none
    unless it is sent as JSON. Raises RequestInvalid."""
    given: dict[str, bytes | None] = {}
    for name in ("key", "value"):
        if name in body:
            data, encoding = body[name], body.get(f"{name}_encoding", "text")
            is_none = data is None and encoding != "json"
            given[name] = None if is_none else _bytes(data, encoding, name)
    return given, [_header(one) for one in body["headers"]] if "headers" in body else None
