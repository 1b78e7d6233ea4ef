"""By what a record is known in another place: its producer's sequence, else its content.

Invariants: pure functions over DataFrames. Content is key, value, time and headers; headers that a
copying job adds do not count. Equal records are numbered, so that each needs a copy of its own.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.pipeline.jobs.headers import (
    NAMED_SEQUENCE,
    PRODUCER,
    RESENT,
    RESENT_PRODUCER,
    RESENT_SEQUENCE,
    SEQUENCE,
    number_header,
    text_header,
    without,
)

RESENT_NAMES: Final = (RESENT, RESENT_PRODUCER, RESENT_SEQUENCE)
NO_HEADERS: Final = "cast(array() AS array<struct<key: string, value: binary>>)"
DEFAULT_PRODUCER: Final = text_header(RESENT_PRODUCER, PRODUCER)
DEFAULT_SEQUENCE: Final = number_header(RESENT_SEQUENCE, SEQUENCE)


def identified(frame: Any, producer: str, sequence: str) -> Any:
    """Add producer, sequence, content (a hash), identity, and the number of a record among those of
    the same identity. `producer` and `sequence` are SQL over a record."""
    # No headers and none of its own are the same: a copy has two that tell where it came from.
    own = f"coalesce({without({*NAMED_SEQUENCE, *RESENT_NAMES})}, {NO_HEADERS})"
    listed = f"to_json(transform({own}, h -> named_struct('k', h.key, 'v', hex(h.value))))"
    parts = ["hex(key)", "hex(value)", "cast(unix_millis(timestamp) AS string)", listed]
    content = ", ':', ".join(f"coalesce({part}, '-')" for part in parts)
    return numbered(
        frame.selectExpr(
            "*",
            f"cast({producer} AS string) AS producer",
            f"try_cast({sequence} AS bigint) AS sequence",
            f"sha2(concat({content}), 256) AS content",
        ).selectExpr(
            "*",
            "CASE WHEN producer IS NOT NULL AND sequence IS NOT NULL"
            " THEN concat('s', sequence, ':', producer) ELSE concat('c', content) END AS identity",
        ),
        "topic, partition, offset",
    )


def numbered(frame: Any, order: str, *, by: str = "identity", name: str = "number") -> Any:
    """Add the number of a row among those that are equal in `by`, as column `name`."""
    window = f"PARTITION BY {by} ORDER BY {order}"
    return frame.selectExpr("*", f"row_number() OVER ({window}) AS {name}")
