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
    from collections.abc import Callable, Iterable

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


_CLAIM: Final = text_header(EDIT_OF)
_CLAIMS_EDIT: Final = f"""coalesce({_CLAIM} RLIKE '^[0-9]{{1,9}}:[0-9]{{1,18}}$'
    AND startswith({text_header(NAMED_SEQUENCE[0])}, '{EDIT_NAME}')
    AND contains({text_header(NAMED_SEQUENCE[0])}, concat('-', {_CLAIM}, '/')), false)"""
_PLACE: Final = ("topic", "partition", "offset")
_ORIGIN: Final = ("kind", "origin_topic", "origin_partition", "origin_offset", "consumer")


def letters_of(records: Any) -> Any:
    """The records of a dead letter topic, edits too, with `LETTER_COLUMNS`."""
    return records.selectExpr("*", *(f"{sql} AS {name}" for name, sql in LETTER_COLUMNS.items()))


def edits_of(letters: Any, earlier: Callable[[], Any]) -> Any:
    """The places of edits among `letters`; None if no record claims to be one.

    As in `EditFinder`, a claim is believed if the record comes from where the letter that it names
    comes from: writers of letters copy the headers of producers, who could claim anything. Letters
    that are named are looked up in `earlier`, the whole log.
    """
    from pyspark.sql.functions import col

    claims = letters.where(_CLAIMS_EDIT).selectExpr(
        *_PLACE, f"cast(split({_CLAIM}, ':')[0] AS int) AS named_partition",
        f"cast(split({_CLAIM}, ':')[1] AS bigint) AS named_offset", *_ORIGIN,
    )  # fmt: skip
    if claims.isEmpty():
        return None
    named = letters_of(earlier()).select(*_PLACE, *_ORIGIN).alias("named")
    claims = claims.where("named_partition = partition AND named_offset < offset").alias("claim")
    is_named = (col("named.topic") == col("claim.topic")) & (
        col("named.partition") == col("claim.named_partition")
    )
    is_named &= col("named.offset") == col("claim.named_offset")
    for name in _ORIGIN:
        is_named &= col(f"named.{name}").eqNullSafe(col(f"claim.{name}"))
    return claims.join(named, is_named, "left_semi").select(*_PLACE)


def find_edits(spark: Any, connection: Connection, letters: Any, window: Window) -> Any:
    """`edits_of` for the letters of a window."""

    def earlier() -> Any:
        whole = resolve_window(connection.cluster, tuple(window.end), WHOLE_LOG)
        return read_window(spark, connection, whole._replace(end=window.end))

    return edits_of(letters, earlier)


def read_letters(
    spark: Any,
    connection: Connection,
    topics: Iterable[str],
    window: Window | None = None,
) -> Any:
    """The letters of these topics, all of them by default, without edits of letters."""
    if window is None:
        window = resolve_window(connection.cluster, tuple(topics), WHOLE_LOG)
    letters = letters_of(read_window(spark, connection, window))
    edits = find_edits(spark, connection, letters, window)
    return letters if edits is None else letters.join(edits, list(_PLACE), "left_anti")


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
