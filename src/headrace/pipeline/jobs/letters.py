"""Dead letters of Headrace and Kafka (KIP-1191), Spring and Connect as one table.

Invariants: reads only. What a letter does not say is null. Header names are in `records/letters`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.jobs.headers import (
    NAMED_SEQUENCE,
    binary_number,
    number_header,
    text_header,
    without,
)
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    Window,
    quoted,
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
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SHARE, _SPRING, _CONNECT = FORMATS
UNSURE_KINDS: Final = tuple(one.kind for one in FORMATS if one.keeps_copied)
"""Whose letters may say about their origin what the records' producers have written."""


def _last_key(*names: str, prefixes: Iterable[str] = PREFIXES) -> str:
    """The key of the last header with one of these names or prefixes."""
    wanted = [f"h.key = {quoted(name)}" for name in names]
    wanted += [f"startswith(h.key, {quoted(prefix)})" for prefix in prefixes]
    return f"try_element_at(filter(headers, h -> {' OR '.join(wanted)}), -1).key"


def _by_kind(share: str, spring: str, connect: str) -> str:
    """What the writer of a letter says, and no other."""
    return (
        f"CASE kind WHEN '{_SHARE.kind}' THEN {share} WHEN '{_SPRING.kind}' THEN {spring}"
        f" WHEN '{_CONNECT.kind}' THEN {connect} END"
    )


_KINDS: Final = " ".join(
    f"WHEN startswith({_last_key()}, {quoted(one.prefix)}) THEN '{one.kind}'" for one in FORMATS
)
_KIND: Final = f"CASE {_KINDS} END"
"""As `letter_of`: whose is the last header that is any writer's."""
LETTER_COLUMNS: Final = {
    "origin_topic": _by_kind(*(text_header(one.topic) for one in FORMATS)),
    "origin_partition": f"""try_cast({_by_kind(number_header(_SHARE.partition),
        binary_number(_SPRING.partition), number_header(_CONNECT.partition))} AS int)""",
    "origin_offset": _by_kind(number_header(_SHARE.offset), binary_number(_SPRING.offset),
                              number_header(_CONNECT.offset)),
    "consumer": _by_kind(*(text_header(one.consumer) for one in FORMATS)),
    "cause": _by_kind(text_header(_SHARE.message), text_header(*_SPRING.causes),
                      text_header(*_CONNECT.causes)),
    "message": _by_kind(*(text_header(one.message) for one in FORMATS)),
    "stage": _by_kind("NULL", "NULL", text_header(_CONNECT.stage)),
    "deliveries": _by_kind(number_header(_SHARE.deliveries), "NULL", "NULL"),
    "redrives": f"coalesce({number_header(REDRIVES)}, 0)",
}  # fmt: skip
"""The columns that are added to a record and its `kind`, with their SQL."""


_CLAIM: Final = text_header(EDIT_OF)
_CLAIMS_EDIT: Final = f"""coalesce({_last_key(EDIT_OF)} = {quoted(EDIT_OF)}
    AND {_CLAIM} RLIKE '^[0-9]{{1,9}}:[0-9]{{1,18}}$'
    AND startswith({text_header(NAMED_SEQUENCE[0])}, '{EDIT_NAME}')
    AND contains({text_header(NAMED_SEQUENCE[0])}, concat('-', {_CLAIM}, '/')), false)"""
_PLACE: Final = ("topic", "partition", "offset")
_ORIGIN: Final = ("kind", "origin_topic", "origin_partition", "origin_offset", "consumer")


def letters_of(records: Any) -> Any:
    """The records of a dead letter topic, edits too, with `kind` and `LETTER_COLUMNS`."""
    columns = (f"{sql} AS {name}" for name, sql in LETTER_COLUMNS.items())
    return records.selectExpr("*", f"{_KIND} AS kind").selectExpr("*", *columns)


def edits_of(letters: Any, earlier: Callable[[], Any]) -> Any:
    """The places of edits among `letters`; None if no record claims to be one.

    As in `EditFinder`, a claim is believed if it comes after what writers of letters add, and the
    record comes from where the letter that it names comes from: writers of letters copy the headers
    of producers, who could claim anything. Letters that are named are looked up in `earlier`, the
    whole log.
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
