"""What the archive of a table commits beside its offsets, so that brokers can say which records are
in the table.

Invariants: pure. The archive of a table has a group of its own, and commits an offset after the
snapshot that reaches it: the records of the topic before the offset, as far as the log holds them,
were taken into that snapshot or an earlier one. The topic is named by its id, and the table by its
UUID, so that neither is taken for another one of that name.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from headrace.records.tenant_names import name_in

GROUP_PREFIX: Final = "headrace-table."  # do not change: stored
"""Of the group of a table; the table's name follows."""


class TableMark(NamedTuple):
    """The metadata of a committed offset: JSON with these names. Do not change: stored."""

    table: str
    """Its name in Spark SQL."""
    table_uuid: str
    snapshot_id: int
    mode: str
    """append: a row for each record; upsert: the latest record of each key."""
    topic_id: str
    """As Kafka's tools write it."""

    def encode(self) -> str:
        """The metadata."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def decode_or_none(cls, metadata: str) -> TableMark | None:
        """None: a client wrote something else."""
        try:
            mark = cls(**json.loads(metadata.rstrip("\0")))  # confluent-kafka sends its final NUL
        except (ValueError, TypeError, RecursionError):
            return None
        texts = mark.table, mark.table_uuid, mark.mode, mark.topic_id
        is_valid = type(mark.snapshot_id) is int and all(map(_is_text, texts))
        return mark if is_valid else None


def _is_text(value: object) -> bool:
    """JSON may have halves of characters, which cannot be sent on."""
    return isinstance(value, str) and value.isprintable()


def is_table_group(group_id: str) -> bool:
    """Whether a group is that of a table, of any tenant."""
    return name_in(group_id).startswith(GROUP_PREFIX)
