"""The bytes of a ledger's footer, as `docs/FORMAT.md` has them: a change here changes that page."""

from __future__ import annotations

from struct import pack

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.log.aborted_index import AbortedIndex
from headrace.log.footer import Footer, decode_contents, decode_footer, encode_footer
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.records.marker import Marker, encode_marker

INDEX = (
    "00000002"
    "0000000000000000 0000000000000009"  # base offsets
    "0000000000000000 0000000000001388"  # positions
    "00000000000003e8 00000000000007d0"  # largest timestamps
)
PRODUCERS = (
    "00000002"
    "0000000000000007 0000 0000000000000bb8 01"
    "00000000 00000001 0000000000000000 00000000000003e8"
    "0000000000000008 0003 0000000000000bb8 00"
)
OPEN = "00000001 0000000000000007 0000000000000000"
ABORTED = (
    "00000001"
    "0000000000000008"  # producer ids
    "0000000000000002"  # first offsets
    "0000000000000003"  # offsets of the markers
    "0000000000000000"  # stable offsets
)
COORDINATORS = "00000001 0000000000000008 00000005"


def raw(*parts: str) -> bytes:
    return bytes.fromhex("".join(parts))


def section(tag: int, flags: int, data: str) -> bytes:
    return pack(">HHI", tag, flags, len(raw(data))) + raw(data)


def head(count: int, version: int = 2) -> bytes:
    return pack(">BqqB", version, 10, 3000, count)


WITHOUT_SECTIONS = (
    raw("01", "000000000000000a", "0000000000000bb8", "00000034", "00000042")
    + raw(INDEX)
    + raw(PRODUCERS)
)
SECTIONS = [
    section(1, 1, INDEX),
    section(2, 1, PRODUCERS),
    section(3, 1, OPEN),
    section(4, 1, ABORTED),
    section(5, 0, COORDINATORS),
]
WHOLE = head(5) + b"".join(SECTIONS)


def sample() -> Footer:
    index = OffsetIndex()
    index.add(0, 0, 1000)
    index.add(9, 5000, 2000)
    producers, aborted = ProducerState(), AbortedIndex()
    records = [Record(0, 1000, None, b"v")] * 2
    batch = encode_batch(
        records, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    producers.apply(check_batch(batch), 0, 3000, 0)
    marker = check_batch(encode_marker(8, 3, Marker(False, 5), 0))
    producers.apply_marker(marker, 5, 3, 3000, 0)
    aborted.add(8, 2, 3, producers.first_open(4))
    return Footer(10, 3000, index, producers, aborted)


def test_a_footer_is_these_bytes() -> None:
    assert encode_footer(sample()) == WHOLE


@pytest.mark.parametrize("data", [WHOLE, WITHOUT_SECTIONS], ids=["version 2", "version 1"])
def test_both_versions_are_read(data) -> None:
    footer = decode_footer(data)
    assert (footer.end_offset, footer.first_append_ms) == (10, 3000)
    assert list(footer.offset_index.positions) == [0, 5000]
    assert len(footer.producers) == 2
    batch = encode_batch(
        [Record(0, 1, None, b"")], producer_id=8, producer_epoch=3, base_sequence=0
    )
    assert footer.producers.check(check_batch(batch)) is None
    if data == WHOLE:
        assert footer.producers.open_transaction(7) == 0
        assert footer.aborted is not None
        assert footer.aborted.find(0, 10) == [(2, 8)]
        assert encode_footer(footer) == WHOLE
    else:
        assert not footer.producers.has_open
        assert footer.aborted is None


def test_a_reader_gets_the_same_without_producers() -> None:
    contents = decode_contents(WHOLE)
    assert (contents.end_offset, contents.is_compacted, contents.first_open_offset) == (
        10,
        False,
        0,
    )
    assert list(contents.offset_index.positions) == [0, 5000]
    assert contents.aborted is not None
    assert contents.aborted.find(0, 10) == [(2, 8)]
    contents = decode_contents(WITHOUT_SECTIONS)
    assert (contents.end_offset, contents.aborted, contents.first_open_offset) == (10, None, None)
    for data, error in (
        (b"", DataCorrupt),
        (WHOLE[:-1], DataCorrupt),
        (head(1) + SECTIONS[0], DataCorrupt),
        (head(5, version=3) + b"".join(SECTIONS), FormatUnsupported),
    ):
        with pytest.raises(error):
            decode_contents(data)


def test_transactions_take_no_bytes_where_there_are_none() -> None:
    footer = Footer(0, -1, OffsetIndex(), ProducerState())
    assert encode_footer(footer) == pack(">BqqB", 2, 0, -1, 2) + section(
        1, 1, "00000000"
    ) + section(2, 1, "00000000")


def test_a_section_of_a_later_version_is_skipped_unless_it_is_required() -> None:
    later = pack(">HHI", 99, 0, 3) + b"???"
    footer = decode_footer(head(6) + later + b"".join(SECTIONS))
    assert encode_footer(footer) == WHOLE
    required = pack(">HHI", 99, 1, 3) + b"???"
    with pytest.raises(FormatUnsupported, match="section 99"):
        decode_footer(head(6) + b"".join(SECTIONS) + required)


def test_fields_of_a_later_version_at_a_sections_end_are_skipped() -> None:
    longer = [*SECTIONS[:2], *(section(n, 1, d + "ff" * 8) for n, d in ((3, OPEN), (4, ABORTED)))]
    assert encode_footer(decode_footer(head(5) + b"".join(longer) + SECTIONS[4])) == WHOLE


def test_a_later_version_is_refused() -> None:
    with pytest.raises(FormatUnsupported, match="version 3"):
        decode_footer(head(5, version=3) + b"".join(SECTIONS))


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_footer_that_is_cut_short_is_damage(size) -> None:
    with pytest.raises(DataCorrupt):
        decode_footer(WHOLE[:size])


def test_other_damage_is_reported() -> None:
    for damaged in (
        WHOLE + b"x",
        head(4) + b"".join([*SECTIONS[:3], SECTIONS[2]]),
        head(1) + SECTIONS[0],
        head(3) + SECTIONS[0] + SECTIONS[1] + section(3, 1, "ffffffff"),
        head(3) + SECTIONS[0] + SECTIONS[1] + section(4, 1, "00000002" + "00" * 32),
    ):
        with pytest.raises(DataCorrupt):
            decode_footer(damaged)
