"""Exports of messages over HTTP: all that a search finds in a topic, as NDJSON or CSV.

Invariants: whole keys, values and headers, unmasked: an export can be sent again. NDJSON is what
`headrace consume --json` writes and `headrace produce --format json` reads. It is streamed as it is
found, a page at a time. An export that cannot be completed is broken off, so that no client takes a
part for the whole.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse

from headrace.broker.services.search import LOG, SearchBounds
from headrace.errors import DataCorrupt, HeadraceError, StorageUnavailable
from headrace.http.operations import NDJSON, PARTITION, TOPIC, Call, Json, Operation, integer
from headrace.http.records import as_text, shown
from headrace.http.search import CONDITIONS, asked_condition, asked_start
from headrace.records.codec import header_name_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from headrace.broker.services.search import FoundMessage, Page
    from headrace.broker.services.services import Services

MESSAGES: Final = 10_000
MESSAGES_MAX: Final = 1_000_000
RUNNING_MAX: Final = 4
STEP: Final = SearchBounds(500, 500)
COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp_ms", "key", "key_encoding", "value",
    "value_encoding", "headers",
)  # fmt: skip
CSV: Final = "text/csv"
_TYPES: Final = {"ndjson": NDJSON, "csv": f"{CSV}; charset=utf-8"}


class ExportOperations:
    """The operation that exports."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._running = 0
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
                      self._export, asked, media_type=NDJSON, other_media_types=(CSV,)),
        ]  # fmt: skip

    async def _export(self, call: Call) -> Response:
        topic, query = self._services.topics.get(call.path["topic"]), call.query
        condition, place = asked_condition(query), asked_start(topic.name, query)
        number, form = query.get("partition"), query.get("format", "ndjson")
        if self._running >= RUNNING_MAX:
            raise StorageUnavailable(f"{RUNNING_MAX} exports are running already: try later")
        first = await self._services.search.page(topic, condition, place, STEP, number)
        _check_whole(first)

        async def pages() -> AsyncIterator[Page]:
            page = first
            while True:
                yield page
                if page.next is None or page.next.rank > 0:  # the other topics' dead letters
                    return
                call.check_again()
                page = await self._services.search.page(topic, condition, page.next, STEP, number)
                _check_whole(page)

        rows = _rows(pages(), topic.name, query.get("max", MESSAGES), _WRITERS[form])
        name = f"{topic.name}.{form}"
        return _Export(_with_head(rows, form), _TYPES[form], name, self._count)

    def _count(self, change: int) -> None:
        self._running += change


class _Export(StreamingResponse):
    """A download that is counted while it runs: one that is never begun does not count."""

    def __init__(
        self, rows: AsyncIterator[bytes], media_type: str, name: str, count: Callable[[int], None]
    ) -> None:
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        }
        super().__init__(rows, media_type=media_type, headers=headers)
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the rows or the client end."""
        self._count(1)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._count(-1)


def _check_whole(page: Page) -> None:
    """Raises the error of a partition that could not be searched: a part is no export."""
    for error in page.failed.values():
        raise error
    if page.unreadable:
        raise DataCorrupt(
            "a batch cannot be decoded, so that its records would be missing: export the offsets"
            " before and behind it, and see headrace check"
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
        if found:
            yield b"".join(map(write, found))
        if left <= 0:
            return


def _as_ndjson(one: FoundMessage) -> bytes:
    record = one.record
    row: Json = {
        "topic": one.topic,
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


def _as_csv(one: FoundMessage) -> bytes:
    row = {"topic": one.topic, "partition": one.partition, **shown(one.record)}
    row["headers"] = json.dumps(row["headers"], ensure_ascii=False, separators=(",", ":"))
    return _line([row.get(name, "text" if "encoding" in name else None) for name in COLUMNS])


def _line(cells: Any) -> bytes:
    written = io.StringIO()
    csv.writer(written).writerow(cells)
    return written.getvalue().encode()


_WRITERS: Final = {"ndjson": _as_ndjson, "csv": _as_csv}
