"""The bytes of a share journal's records."""

from __future__ import annotations

import pytest

from headrace.coordination.shares.state_records import (
    KeyParked,
    ShareGroupChanged,
    ShareGroupOpened,
    ShareGroupRemoved,
    StoredRun,
    decode,
    encode,
)
from headrace.coordination.shares.window import ACKNOWLEDGED, AVAILABLE
from headrace.errors import RecordInvalid

RUNS = (
    StoredRun(1_000_000, 1_000_000, ACKNOWLEDGED, 1),
    StoredRun(1_000_005, 1_000_300, AVAILABLE, 2, 5),
)
RECORDS = [
    ShareGroupOpened(300, "workers", 7),
    ShareGroupChanged(3, RUNS),
    ShareGroupChanged(3, RUNS, 0),
    ShareGroupChanged(3, (), 1 << 40, is_reset=True),
    KeyParked(3, b"key", 17, 5),
    KeyParked(3, b"key", -1, None),
    ShareGroupRemoved(3),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_from_its_bytes(record):
    assert decode(*encode(record)) == record


def test_an_acknowledged_record_takes_ten_bytes():
    for offset, size in ((100, 8), (16_000, 9), (2_000_000, 10)):
        run = StoredRun(offset, offset, ACKNOWLEDGED, 1)
        assert sum(map(len, encode(ShareGroupChanged(9, (run,))))) == size


@pytest.mark.parametrize(
    ("value", "start", "is_reset"),
    [(b"\0\0\0", -1, False), (b"\0\0\x08", 7, False), (b"\0\x01\x08", 7, True)],
)
def test_changes_of_version_0_are_read(value, start, is_reset):
    run = b"\x05\0\x02\x01"
    expected = ShareGroupChanged(3, (StoredRun(5, 5, ACKNOWLEDGED, 1),), start, is_reset)
    assert decode(b"\x01\x03", value + run) == expected


def test_records_of_a_newer_version_are_skipped_and_damaged_ones_refused():
    assert decode(b"\x01\x03", b"\x02\0") is None
    assert decode(b"\0\x03", b"\x01\0g") is None
    for damaged in (b"\x01", b"\x01\x02", b"\x01\0\x05", b"\x01\0\x05\0\x07\x01"):
        with pytest.raises(RecordInvalid):
            decode(b"\x01\x03", damaged)
