"""The batch seen from outside, and names."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from headrace.errors import BatchCorrupt, UnsupportedForMessageFormat
from headrace.records.batch import check_batch, is_intact, iterate_headers, read_header
from headrace.records.codec import Record, encode_batch
from headrace.records.identifiers import TopicPartition, is_topic_name

BATCH = encode_batch([Record(0, 7, b"k", b"v"), Record(0, 9, None, None)], base_offset=40)


def test_a_good_batch_says_what_it_holds():
    header = check_batch(b"..." + BATCH + b"...", 3)
    assert (header.base_offset, header.last_offset, header.record_count) == (40, 41, 2)
    assert header.size == len(BATCH)
    assert is_intact(BATCH, 0, header)


def test_a_broker_takes_no_gaps_and_no_empty_batches():
    from headrace.records.codec import retain_records

    for kept in ([], [Record(41, 9, None, None)]):
        with pytest.raises(BatchCorrupt, match="contradicts"):
            check_batch(retain_records(read_header(BATCH), kept))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_named_even_when_they_are_shorter_than_a_header(magic):
    old = bytearray(BATCH[:34])
    old[16] = magic
    with pytest.raises(UnsupportedForMessageFormat):
        check_batch(old)


def test_headers_are_found_in_a_row_and_a_cut_batch_is_left_out():
    data = BATCH + BATCH + BATCH[:-1]
    assert [position for position, _ in iterate_headers(data)] == [0, len(BATCH)]
    assert list(iterate_headers(b"")) == []


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_length_that_would_loop_without_end_is_refused(length):
    bad = bytearray(BATCH)
    bad[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(BatchCorrupt, match="invalid batch length"):
        list(iterate_headers(bad))


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_legal_topic_names(name):
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250, "a\n", "a\0"])
def test_illegal_topic_names(name):
    assert not is_topic_name(name)


def test_a_partition_is_written_as_kafka_writes_it():
    assert str(TopicPartition("orders", 3)) == "orders-3"


def test_a_record_that_the_bytes_after_the_header_cannot_hold_is_refused():
    header = encode_batch([Record(0, 1, None, b"")])[:61]
    empty = bytearray(header)
    empty[8:12] = (49).to_bytes(4, "big")
    empty[17:21] = crc32c(bytes(empty[21:])).to_bytes(4, "big")
    with pytest.raises(BatchCorrupt, match="do not fit in"):
        check_batch(bytes(empty))
