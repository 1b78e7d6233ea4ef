"""Dead letters of Headrace and Kafka (KIP-1191), Spring and Connect as one table.

Invariants: reads only. What a letter does not say is null. Header names are in `records/letters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.jobs.headers import (
    NAMED_SEQUENCE,
    binary_number,
    last_header,
    number_header,
    text_header,
    without,
)
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    Window,
    read_window,
    resolve_window,
)
from headrace.records.letters import (
    EDIT_NAME,
    EDIT_OF,
    FORMATS,
    PATH,
    PREFIXES,
    REDRIVEN_FROM,
    REDRIVES,
    LetterFormat,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARE, _SPRING, _CONNECT = FORMATS


def _writer(one: LetterFormat) -> str:
    return f"WHEN {last_header(one.topic, *one.also)} IS NOT NULL THEN '{one.kind}'"


LETTER_COLUMNS: Final = {
    "kind": f"CASE {' '.join(map(_writer, FORMATS))} END",
    "origin_topic": text_header(*(one.topic for one in FORMATS)),
    "origin_partition": f"""cast(coalesce({number_header(_SHARE.partition)},
        {binary_number(_SPRING.partition)}, {number_header(_CONNECT.partition)}) AS int)""",
    "origin_offset": f"""coalesce({number_header(_SHARE.offset)},
        {binary_number(_SPRING.offset)}, {number_header(_CONNECT.offset)})""",
    "consumer": text_header(*(one.consumer for one in FORMATS)),
    "cause": text_header(*_SPRING.causes, *_CONNECT.causes, _SHARE.message),
    "message": text_header(*(one.message for one in FORMATS)),
    "stage": text_header(_CONNECT.stage),
    "deliveries": number_header(_SHARE.deliveries),
    "redrives": f"coalesce({number_header(REDRIVES)}, 0)",
}
"""The columns that are added to a record, with their SQL."""


def is_edit() -> str:
    """Whether a record was appended as an edit. Unlike `EditFinder`, this does not look at the
    letter that it names: a producer that knows how edits are named can keep its own letter out."""
    named = f"startswith({text_header(NAMED_SEQUENCE[0])}, '{EDIT_NAME}')"
    return f"coalesce({last_header(EDIT_OF)} IS NOT NULL AND {named}, false)"


def letters_of(records: Any) -> Any:
    """The records of a dead letter topic with `LETTER_COLUMNS`, without edits of letters."""
    letters = records.where(f"NOT {is_edit()}")
    return letters.selectExpr("*", *(f"{sql} AS {name}" for name, sql in LETTER_COLUMNS.items()))


def read_letters(
    spark: Any,
    connection: Connection,
    topics: Iterable[str],
    window: Window | None = None,
) -> Any:
    """The letters of these topics, all of them by default."""
    if window is None:
        window = resolve_window(connection.cluster, tuple(topics), WHOLE_LOG)
    return letters_of(read_window(spark, connection, window))


def own_headers() -> str:
    """A record's headers without what made it a letter."""
    return without({*NAMED_SEQUENCE, PATH, REDRIVES, REDRIVEN_FROM, EDIT_OF}, PREFIXES)


def causes(letters: Any, samples: int = 3) -> list[dict[str, Any]]:
    """Failures by kind, origin, consumer and cause, the most frequent first, with samples."""
    from pyspark.sql.functions import desc, expr

    sample = (
        "struct(topic, partition, offset, timestamp,"
        " make_valid_utf8(cast(substring(key, 1, 100) AS string)) AS key,"
        " make_valid_utf8(cast(substring(value, 1, 200) AS string)) AS value,"
        " substring(message, 1, 200) AS message, redrives)"
    )
    rows = (
        letters.groupBy("kind", "origin_topic", "consumer", "cause")
        .agg(
            expr("count(*) AS count"),
            expr("count(DISTINCT key) AS keys"),
            expr("min(timestamp) AS first"),
            expr("max(timestamp) AS last"),
            expr("max(redrives) AS redrives_max"),
            expr(f"min_by({sample}, named_struct('p', partition, 'o', offset)) AS oldest"),
            expr(f"max_by({sample}, named_struct('t', timestamp, 'o', offset)) AS newest"),
        )
        .orderBy(desc("count"), "origin_topic", "consumer", "cause")
        .limit(1_000)
    )
    found = []
    for row in rows.collect():
        one = row.asDict(recursive=True)
        samples_of = [one.pop("oldest"), one.pop("newest")]
        one["samples"] = samples_of[: 1 if samples_of[0] == samples_of[1] else 2][:samples]
        found.append(one)
    return found
