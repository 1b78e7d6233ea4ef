"""Search for messages at rest: in a table, a topic, or both as one.

Invariants: reads only. The criteria mean what they mean for `headrace find`: the same headers, the
same words. A record that is in the log and in the table is returned once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.headers import text_header
from headrace.pipeline.jobs.windows import COLUMNS, quoted

MESSAGE_ID, TAG, KEYS = "headrace-message-id", "headrace-tag", "headrace-keys"
COUNT_MAX: Final = 10_000


@dataclass(frozen=True)
class Query:
    """What to look for; everything given must hold. `where` is SQL over a record."""

    topic: str
    message_id: str | None = None
    key: str | None = None
    tag: str | None = None
    header: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    partition: int | None = None
    where: str | None = None


def condition(query: Query) -> str:
    """The query as SQL. Raises OptionInvalid."""
    found = [f"topic = {quoted(query.topic)}"]
    if query.partition is not None:
        found.append(f"partition = {query.partition}")
    if query.since_ms is not None:
        found.append(f"timestamp >= timestamp_millis({query.since_ms})")
    if query.until_ms is not None:
        found.append(f"timestamp < timestamp_millis({query.until_ms})")
    if query.key is not None:
        word = f"array_contains(split({text_header(KEYS)}, ' '), {quoted(query.key)})"
        found.append(f"(key = cast({quoted(query.key)} AS binary) OR {word})")
    if query.message_id is not None:
        found.append(f"{text_header(MESSAGE_ID)} = {quoted(query.message_id)}")
    if query.tag is not None:
        found.append(f"{text_header(TAG)} = {quoted(query.tag)}")
    if query.header is not None:
        name, equals, value = query.header.partition("=")
        if not equals:
            raise OptionInvalid(f"A header is given as NAME=VALUE, not {query.header!r}.")
        same = f"h.key = {quoted(name)} AND h.value = cast({quoted(value)} AS binary)"
        found.append(f"exists(headers, h -> {same})")
    if query.where is not None:
        found.append(f"({query.where})")
    return " AND ".join(found)


def search(query: Query, *frames: Any) -> Any:
    """The matching records of all frames, once each, by partition and offset."""
    matching = condition(query)
    found = None
    for frame in frames:
        part = frame.where(matching).select(*COLUMNS)
        if found is not None:
            place = ["topic", "partition", "offset"]
            part = part.join(found.select(*place), place, "left_anti")
        found = part if found is None else found.unionByName(part)
    if found is None:
        raise OptionInvalid("Nothing to search: give a table or a topic.")
    return found.orderBy("partition", "offset")


def documents(found: Any, count: int, state: str = "archived") -> list[dict[str, Any]]:
    """The first `count` records in the form of `headrace find`."""
    rows = found.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms",
        "key", "value", "headers",
    ).limit(min(count, COUNT_MAX)).collect()  # fmt: skip
    return [
        {
            "state": state,
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp_ms": row["timestamp_ms"],
            "key": _text(row["key"]),
            "value": _text(row["value"]),
            "headers": [[one["key"], _text(one["value"])] for one in row["headers"] or ()],
        }
        for row in rows
    ]


def _text(data: Any) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "backslashreplace")
