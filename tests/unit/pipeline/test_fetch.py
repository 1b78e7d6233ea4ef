"""From a client's messages to Arrow, and the end of a range with holes."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from headrace.pipeline import direct
from headrace.pipeline.arrow import COLUMNS, binary, header_column, to_arrow
from headrace.pipeline.broker_connection import FetchedPartition
from headrace.pipeline.columns import BATCH_BYTES_MAX, batches_of, columns_of
from headrace.pipeline.errors import ReadStalled, RecordsLost, RecordUnreadable
from headrace.pipeline.fetch import message_batches
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange
from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.records.marker import Marker, encode_marker


class Message:
    """What confluent_kafka returns; `headers` may be an error, as for a key that is not UTF-8."""

    def __init__(
        self, offset, value=b"v", key=None, headers=None, timestamp=(1, 1_000), error=None
    ):
        self._fields = (offset, value, key, headers, timestamp, error)

    def offset(self):
        return self._fields[0]

    def value(self):
        return self._fields[1]

    def key(self):
        return self._fields[2]

    def headers(self):
        if isinstance(self._fields[3], Exception):
            raise self._fields[3]
        return self._fields[3]

    def timestamp(self):
        return self._fields[4]

    def error(self):
        return self._fields[5]

    def __len__(self):
        return len(self._fields[1] or b"")


class Client:
    """A consumer that plays a script, one list a poll."""

    def __init__(self, *polls):
        self.polls = list(polls)

    def consume(self, count, timeout):
        return self.polls.pop(0) if self.polls else []


def end_event(offset):
    return Message(offset, error=KafkaError(KafkaError._PARTITION_EOF))


def no_raw_headers(offsets):
    raise AssertionError(f"asked for the headers at {offsets}")


def read(client, piece, **options):
    options = SourceOptions(client={}, **options)
    slices = (
        columns_of(messages, include_headers=True, read_raw_headers=no_raw_headers)
        for messages in message_batches(client, piece, options)
    )
    return list(batches_of(slices, options.batch_rows))


def offsets_of(client, piece, **options):
    return [offset for rows in read(client, piece, **options) for offset in rows.offsets]


def arrow_of(messages, read_raw_headers=no_raw_headers):
    rows = columns_of(messages, include_headers=True, read_raw_headers=read_raw_headers)
    batch = to_arrow(rows, "t", 3)
    batch.validate(full=True)
    return batch


def test_a_batch_holds_what_the_messages_said():
    batch = arrow_of(
        [
            Message(7, b"one", b"k", [("h", b"x"), ("h", None)], (1, 1_500)),
            Message(8, None, None, None, (2, 2_000)),
            Message(9, b"", b"", [("ä", b"")], (0, -1)),
        ]
    )
    assert tuple(batch.schema.names) == COLUMNS
    rows = batch.to_pylist()
    assert rows[0] == {
        "topic": "t", "partition": 3, "offset": 7, "key": b"k", "value": b"one",
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
        "raw": None,
    }  # fmt: skip
    assert (rows[1]["value"], rows[1]["key"], rows[1]["headers"]) == (None, None, None)
    assert rows[1]["timestampType"] == 1
    assert (rows[2]["value"], rows[2]["key"], rows[2]["timestamp"]) == (b"", b"", None)
    assert rows[2]["headers"] == [{"key": "ä", "value": b""}]


def test_buffers_by_hand_equal_arrows_own():
    for values in ([b"a", None, b""], [b"x" * 9] * 17, [], [None] * 9):
        column = binary(values)
        column.validate(full=True)
        assert column.equals(pa.array(values, pa.binary()))
    assert header_column([None, []]).to_pylist() == [None, None]


def test_a_range_ends_at_its_end_and_not_after_it():
    client = Client([Message(4), Message(5)], [Message(6), Message(7)])
    assert offsets_of(client, OffsetRange("t", 0, 4, 7)) == [4, 5, 6]


def test_a_hole_at_the_end_is_no_reason_to_wait():
    # Offsets 6 to 9 are transaction markers or were compacted away.
    beyond = Client([Message(4), Message(5), Message(12)])
    assert offsets_of(beyond, OffsetRange("t", 0, 4, 9)) == [4, 5]
    ended = Client([Message(4), Message(5), end_event(10)])
    assert offsets_of(ended, OffsetRange("t", 0, 4, 10)) == [4, 5]
    assert offsets_of(Client([end_event(10)]), OffsetRange("t", 0, 4, 10)) == []


def test_a_silent_broker_is_an_error_that_spark_may_retry():
    with pytest.raises(ReadStalled, match="no records arrived for 1 ms at offset 5"):
        offsets_of(Client([Message(4)]), OffsetRange("t", 0, 4, 9), stall_timeout_ms=1)


def test_an_offset_that_is_gone_is_a_loss():
    gone = Message(4, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
    with pytest.raises(RecordsLost, match="offset 4 is no longer in the log"):
        offsets_of(Client([gone]), OffsetRange("t", 0, 4, 9))


def test_large_values_come_in_small_batches():
    large = [Message(offset, b"x" * (1 << 20)) for offset in range(80)]
    polls = [large[at : at + 20] for at in range(0, 80, 20)]
    batches = read(Client(*polls), OffsetRange("t", 0, 0, 80))
    assert [len(batch) for batch in batches] == [20, 20, 20, 20]


MIB = b"x" * (1 << 20)


@pytest.mark.parametrize(
    "fields",
    [
        {"value": MIB},
        {"key": MIB, "value": None},
        {"headers": [("h", MIB)]},
        {"headers": [("x" * (1 << 20), None)]},
        {"headers": [("h", b"v" * 1_000)] * 1_024},
    ],
    ids=["value", "key", "header value", "header key", "many headers"],
)
def test_every_column_counts_towards_the_size_of_a_batch(fields):
    messages = [Message(offset, **fields) for offset in range(100)]
    batches = read(Client(messages), OffsetRange("t", 0, 0, 100))
    assert [offset for rows in batches for offset in rows.offsets] == list(range(100))
    for rows in batches:
        assert rows.size_bytes == sum(rows.row_sizes())
        assert to_arrow(rows, "t", 0).nbytes <= BATCH_BYTES_MAX + (64 << 10)
    assert len(batches) in (4, 5)


def test_a_record_larger_than_a_batch_is_a_batch_of_its_own():
    giant = Message(1, b"x" * (BATCH_BYTES_MAX + 1))
    batches = read(Client([Message(0), giant, Message(2)]), OffsetRange("t", 0, 0, 3))
    assert [rows.offsets for rows in batches] == [[0], [1], [2]]


def test_the_bound_in_rows_holds_whatever_the_client_returns():
    polls = [[Message(offset) for offset in range(at, at + 7)] for at in range(0, 70, 7)]
    batches = read(Client(*polls), OffsetRange("t", 0, 0, 70), batch_rows=3)
    assert [offset for rows in batches for offset in rows.offsets] == list(range(70))
    assert max(len(rows) for rows in batches) == 3


UNDECODED = SystemError("<method 'headers'> returned a result with an exception set")


def test_header_keys_that_are_not_utf_8_are_kept_beside_a_readable_form():
    def read_raw_headers(offsets):
        assert offsets == [8, 10]
        return {8: [(b"caf\xe9", b"1"), (b"ok", None)], 10: [(b"\xff", b"")]}

    messages = [
        Message(7, headers=[("plain", b"0")]),
        Message(8, headers=UNDECODED),
        Message(9),
        Message(10, headers=UNDECODED),
    ]
    rows = arrow_of(messages, read_raw_headers).to_pylist()
    assert [row["headers"] for row in rows] == [
        [{"key": "plain", "value": b"0"}],
        [{"key": "caf\ufffd", "value": b"1"}, {"key": "ok", "value": None}],
        None,
        [{"key": "\ufffd", "value": b""}],
    ]
    assert [row["raw"] for row in rows] == [
        None,
        {"timestampMs": None, "headerKeys": [b"caf\xe9", b"ok"]},
        None,
        {"timestampMs": None, "headerKeys": [b"\xff"]},
    ]


def test_raw_keys_stay_with_their_record_when_batches_are_cut():
    def read_raw_headers(offsets):
        return {offset: [(b"\xff%d" % offset, b"")] for offset in offsets}

    messages = [Message(offset, headers=UNDECODED if offset % 3 else None) for offset in range(9)]
    slices = [columns_of(messages, include_headers=True, read_raw_headers=read_raw_headers)]
    rows = [
        row for part in batches_of(iter(slices), 2) for row in to_arrow(part, "t", 0).to_pylist()
    ]
    assert [row["raw"] and row["raw"]["headerKeys"] for row in rows] == [
        [b"\xff%d" % offset] if offset % 3 else None for offset in range(9)
    ]


def test_a_timestamp_that_spark_cannot_represent_is_kept_as_a_number():
    last_ms = 253_402_300_799_999
    times = [
        1_700_000_000_000,
        1_700_000_000_000_000_000,  # nanoseconds
        1_700_000_000_000_000,  # microseconds: the year 55840
        -5,
        -1,  # Kafka's "none"
        last_ms,
        last_ms + 1,
        -(2**63),
        2**63 - 1,
    ]
    rows = arrow_of(
        [Message(at, timestamp=(1, time_ms)) for at, time_ms in enumerate(times)]
    ).to_pylist()
    shown = {at: row["raw"]["timestampMs"] for at, row in enumerate(rows) if row["raw"]}
    assert shown == {at: times[at] for at in (1, 2, 6, 7, 8)}
    assert [at for at, row in enumerate(rows) if row["timestamp"] is None] == [1, 2, 4, 6, 7, 8]
    assert rows[3]["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 995_000, UTC)
    assert rows[5]["timestamp"] == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert {row["timestampType"] for row in rows} == {0}


def test_a_damaged_batch_is_named_by_its_place():
    damaged = Message(6, error=KafkaError(KafkaError._BAD_MSG))
    with pytest.raises(RecordUnreadable, match="t-0: the record batch at offset 6 cannot be read"):
        offsets_of(Client([Message(4), Message(5)], [damaged]), OffsetRange("t", 0, 4, 9))


# --- whole batches -----------------------------------------------------------------------------

CONTROL_BIT_AT = 22  # the low byte of `attributes`; the producer id begins at 43
PRODUCER, ABORTED = 0x10, 0x11


class OneResponse:
    """A broker whose log is one response."""

    def __init__(self, data, aborted):
        self._fetched = FetchedPartition(0, 99, 99, 0, aborted, data)

    def send_fetch(self, request):
        pass

    def receive_fetch(self):
        return self._fetched

    def close(self):
        pass


def log_of(*batches):
    """Batches with ascending base offsets, which no CRC covers."""
    data, offset = b"", 0
    for batch in batches:
        data += offset.to_bytes(8, "big") + batch[8:]
        ((_at, header),) = iterate_headers(batch)
        offset += header.last_offset_delta + 1
    return data


def transactional(producer_id, *values):
    records = [Record(delta, 1_000, None, value) for delta, value in enumerate(values)]
    return encode_batch(records, producer_id=producer_id, producer_epoch=0, is_transactional=True)


def values_read(monkeypatch, data, end):
    monkeypatch.setattr(direct.LogReader, "_connect", lambda _: OneResponse(data, [(ABORTED, 2)]))
    options = SourceOptions(client={"bootstrap.servers": "unused:1"})
    read = direct.read_directly(OffsetRange("t", 0, 0, end), options)
    return [value for batch in read for value in batch.column("value").to_pylist()]


LOG = log_of(
    transactional(PRODUCER, b"a", b"b"),
    transactional(ABORTED, b"never"),
    transactional(PRODUCER, b"c"),
    encode_marker(ABORTED, 0, Marker(is_commit=False, coordinator_epoch=0), 1_000),
    transactional(PRODUCER, b"d"),
)


def test_markers_and_aborted_batches_are_not_read(monkeypatch):
    assert values_read(monkeypatch, LOG, 6) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("batch", range(5))
@pytest.mark.parametrize(
    ("at", "bit"),
    [(CONTROL_BIT_AT, 0x20), (CONTROL_BIT_AT, 0x10), (50, PRODUCER ^ ABORTED), (16, 0x01)],
    ids=["control", "transactional", "producer", "magic"],
)
def test_a_flipped_bit_in_a_header_never_hides_records(monkeypatch, batch, at, bit):
    position, header = list(iterate_headers(LOG))[batch]
    data = bytearray(LOG)
    data[position + at] ^= bit
    place = f"t-0: the record batch at offset {header.base_offset} cannot be read"
    with pytest.raises(RecordUnreadable, match=place):
        values_read(monkeypatch, bytes(data), 6)
    before = [b"a", b"b", b"c"][: (0, 2, 2, 3, 3)[batch]]
    found = values_read(monkeypatch, bytes(data), header.base_offset)
    assert found == before, "a batch after the range does not matter"
