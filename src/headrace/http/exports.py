"""Exports of messages over HTTP: all that a search finds in a topic, as NDJSON or CSV.

Invariants: whole keys, values and headers, unmasked: an export can be sent again. NDJSON is what
`headrace consume --json` writes and `headrace produce --format json` reads. It is streamed as it is
found, a page at a time. An export that cannot be completed is broken off, so that no client takes a
part for the whole. One client holds few of the places, however slowly it reads.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenant_shares import Holder, SharedPlaces
from headrace.broker.services.search import LOG, SearchBounds
from headrace.coordination.quotas.entities import CONSUMER
from headrace.errors import DataCorrupt, HeadraceError, StorageUnavailable
from headrace.http.event_streams import HeldStream
from headrace.http.operations import NDJSON, PARTITION, TOPIC, Call, Json, Operation, integer
from headrace.http.records import as_text, shown
from headrace.http.search import CONDITIONS, asked_condition, asked_start
from headrace.records.codec import header_name_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from starlette.responses import Response

    from headrace.broker.services.search import FoundMessage, Page, SearchPosition
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.records.matching import Condition

MESSAGES: Final = 10_000
MESSAGES_MAX: Final = 1_000_000
RUNNING_MAX: Final = 32
"""Each holds a page; searches for pages are bounded on their own."""
OF_A_CLIENT_MAX: Final = 2
STEP: Final = SearchBounds(500, 500, 2 * 1024 * 1024)
PIECE_BYTES: Final = 64 * 1024
"""What is sent and charged at a time; its last message may exceed it."""
COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "key_encoding", "value",
    "value_encoding", "headers",
)  # fmt: skip
CSV: Final = "text/csv"
_QUOTED: Final = re.compile('[",\r\n]')
"""What has to be quoted in CSV."""
_TYPES: Final = {"ndjson": NDJSON, "csv": f"{CSV}; charset=utf-8"}


class ExportOperations:
    """The operation that exports."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running: Counter[object] = Counter()
        self._places = SharedPlaces("exports running", RUNNING_MAX)
        asked = {
            "topic": TOPIC,
            **CONDITIONS,
            "partition": PARTITION,
            "format": {"type": "string", "enum": [*_TYPES], "default": "ndjson"},
            "max": integer(1, MESSAGES_MAX, default=MESSAGES),
        }
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/export", "exportMessages",
                      "Export messages of a topic as NDJSON or CSV, with all their bytes.",
                      self._export, asked, media_type=NDJSON, other_media_types=(CSV,),
                      quota=CONSUMER),
        ]  # fmt: skip

    async def _export(self, call: Call) -> Response:
        topic, query = self._services.topics.readable.get(call.path["topic"]), call.query
        condition, place = asked_condition(query), asked_start(topic.name, query)
        number, form = query.get("partition"), query.get("format", "ndjson")
        released = self._take_place(call.holder)
        try:
            first = await self._page(topic, condition, place, number)
        except BaseException:
            released()
            raise

        async def pages() -> AsyncIterator[Page]:
            page = first
            while True:
                yield page
                if page.next is None:
                    return
                call.check_again()
                page = await self._page(topic, condition, page.next, number)

        shown = call.view.name(topic.name)
        name = shown.replace("/", ".")
        write = partial(_WRITERS[form], shown)
        rows = _rows(pages(), topic.name, query.get("max", MESSAGES), write)
        headers = {"content-disposition": f'attachment; filename="{name}.{form}"'}
        paced = _with_head(self._charged(call, rows), form)
        return HeldStream(paced, _TYPES[form], headers, released)

    async def _page(
        self, topic: Topic, condition: Condition, place: SearchPosition, number: int | None
    ) -> Page:
        """The next page of the topic itself. Raises the error of a partition that could not be
        searched: a part is not an export."""
        page = await self._services.search.page(
            topic, condition, place, STEP, number, covers=lambda _dead_letters: False
        )
        _check_whole(page)
        return page

    async def _charged(self, call: Call, rows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The rows, as fast as the client's quota for reads lets them go. Raises what
        `check_again` raises."""
        quotas = self._services.quotas
        async for one in rows:
            throttle_ms = quotas.take(call.session, CONSUMER, len(one))
            yield one
            if throttle_ms:
                await quotas.wait_paid(call.session, CONSUMER, throttle_ms)
                call.check_again()

    def _take_place(self, holder: Holder) -> Callable[[], None]:
        """Count an export; returns what ends it. Raises StorageUnavailable."""
        client = holder.user
        if self._running[client] >= OF_A_CLIENT_MAX:
            raise StorageUnavailable(
                f"{OF_A_CLIENT_MAX} exports of this client are running already: let one end first"
            )
        released = self._places.take(holder)
        self._running[client] += 1

        def ended() -> None:
            released()
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]

        return ended


def _check_whole(page: Page) -> None:
    """Raises the error of a partition that could not be searched: a part is not an export."""
    for error in page.failed.values():
        raise error
    if page.unreadable:
        raise DataCorrupt(
            "a batch cannot be decoded, so that its records would be missing: export the offsets"
            " before and after it, and see headrace check"
        )


async def _with_head(rows: AsyncIterator[bytes], form: str) -> AsyncIterator[bytes]:
    if form == "csv":
        yield _line(COLUMNS)
    try:
        async for one in rows:
            yield one
    except HeadraceError as error:  # the head is sent: the connection is broken off
        raise ConnectionAbortedError(f"the export was broken off: {error}") from error


async def _rows(
    pages: AsyncIterator[Page], topic: str, left: int, write: Callable[[FoundMessage], bytes]
) -> AsyncIterator[bytes]:
    async for page in pages:
        found = [one for one in page.found if one.topic == topic and one.state == LOG][:left]
        left -= len(found)
        piece = bytearray()
        for one in found:
            piece += write(one)
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        if piece:
            yield bytes(piece)
        if left <= 0:
            return


def _as_ndjson(topic: str, one: FoundMessage) -> bytes:
    record = one.record
    row: Json = {
        "topic": topic,
        "partition": one.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_named("key", record.key),
        **_named("value", record.value),
        "headers": [
            {**_named("key", header_name_bytes(name)), **_named("value", value)}
            for name, value in record.headers
        ],
    }
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _named(name: str, data: bytes | None) -> Json:
    found, is_text = as_text(data)
    return {name if is_text else f"{name}_base64": found}


def _as_csv(topic: str, one: FoundMessage) -> bytes:
    row = {"topic": topic, "partition": one.partition, **shown(one.record)}
    row["headers"] = json.dumps(row["headers"], ensure_ascii=False, separators=(",", ":"))
    return _line([row.get(name, "text" if "encoding" in name else None) for name in COLUMNS])


def _line(cells: Iterable[object]) -> bytes:
    """A line of CSV (RFC 4180), in which null is an empty cell and an empty text is `""`, as
    PostgreSQL's COPY writes and reads them."""
    return (",".join(map(_cell, cells)) + "\r\n").encode()


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if text and not _QUOTED.search(text):
        return text
    return '"' + text.replace('"', '""') + '"'


_WRITERS: Final = {"ndjson": _as_ndjson, "csv": _as_csv}
