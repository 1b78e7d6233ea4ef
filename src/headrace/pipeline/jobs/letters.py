"""Dead letters of Headrace and Kafka (KIP-1191), Spring and Connect as one table.

Invariants: reads only. What a letter does not say is null. Header names are those of the writers:
`__dlq.errors.*` (Kafka 4.4 and Headrace), `kafka_dlt-*` (Spring, KafkaHeaders), and
`__connect.errors.*` (Connect, KIP-298).
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

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARE, SPRING, CONNECT = "__dlq.errors.", "kafka_dlt-", "__connect.errors."
REDRIVES: Final = "headrace-redrives"
"""Header that counts how often a record was sent back; `headrace dead` uses it, too."""
PATH: Final = "headrace-dlq-path"
_SPRING_CONSUMER = "kafka_dlt-original-consumer-group"

LETTER_COLUMNS: Final = {
    "kind": f"""CASE
        WHEN {last_header(SHARE + "topic", SHARE + "group")} IS NOT NULL THEN 'share'
        WHEN {last_header(SPRING + "original-topic", SPRING + "exception-fqcn")} IS NOT NULL
            THEN 'spring'
        WHEN {last_header(CONNECT + "topic", CONNECT + "connector.name")} IS NOT NULL
            THEN 'connect'
        END""",
    "origin_topic": text_header(SHARE + "topic", SPRING + "original-topic", CONNECT + "topic"),
    "origin_partition": f"""cast(coalesce({number_header(SHARE + "partition")},
        {binary_number(SPRING + "original-partition")},
        {number_header(CONNECT + "partition")}) AS int)""",
    "origin_offset": f"""coalesce({number_header(SHARE + "offset")},
        {binary_number(SPRING + "original-offset")}, {number_header(CONNECT + "offset")})""",
    "consumer": text_header(SHARE + "group", _SPRING_CONSUMER, CONNECT + "connector.name"),
    "cause": text_header(
        SPRING + "exception-cause-fqcn",
        SPRING + "exception-fqcn",
        CONNECT + "exception.class.name",
        SHARE + "message",
    ),
    "message": text_header(
        SHARE + "message", SPRING + "exception-message", CONNECT + "exception.message"
    ),
    "stage": text_header(CONNECT + "stage"),
    "deliveries": number_header(SHARE + "delivery.count"),
    "redrives": f"coalesce({number_header(REDRIVES)}, 0)",
}
"""The columns that are added to a record, with their SQL."""


def letters_of(records: Any) -> Any:
    """The records of a dead letter topic with `LETTER_COLUMNS`."""
    return records.selectExpr("*", *(f"{sql} AS {name}" for name, sql in LETTER_COLUMNS.items()))


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
    return without({*NAMED_SEQUENCE, PATH, REDRIVES}, (SHARE, SPRING, CONNECT))


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
