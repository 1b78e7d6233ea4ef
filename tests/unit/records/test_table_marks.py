"""The marks of tables: what anybody may have committed is read as a mark, or as nothing."""

from __future__ import annotations

import pytest

from headrace.records.table_marks import TableMark

MARK = TableMark("lake.«acme»shop.orders", "uuid", 2**62 + 1, "append", "topic id")


def test_a_mark_is_read_as_it_was_written() -> None:
    assert TableMark.decode_or_none(MARK.encode()) == MARK
    assert TableMark.decode_or_none(MARK.encode() + "\0") == MARK


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "{", "[]", "{}", "1", "[" * 100_000, MARK.encode().replace('"uuid"', "1")),
        MARK._replace(table="\ud800").encode(),
        MARK._replace(mode="a\nb").encode(),
        MARK.encode().replace(str(MARK.snapshot_id), "true"),
    ],
)
def test_what_a_client_commits_otherwise_is_no_mark(metadata: str) -> None:
    assert TableMark.decode_or_none(metadata) is None
