"""From a client's messages to Arrow, and the end of a range with holes."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from headrace.pipeline.errors import ReadStalled, RecordsLost
from headrace.pipeline.fetch import COLUMNS, binary, header_column, message_batches, to_arrow
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange


class Message:
    """What confluent_kafka hands out."""

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


def offsets_of(client, piece, **options):
    batches = message_batches(client, piece, SourceOptions(client={}, **options))
    return [message.offset() for batch in batches for message in batch]


def test_a_batch_holds_what_the_messages_said():
    batch = to_arrow(
        [
            Message(7, b"one", b"k", [("h", b"x"), ("h", None)], (1, 1_500)),
            Message(8, None, None, None, (2, 2_000)),
            Message(9, b"", b"", [("ä", b"")], (0, -1)),
        ],
        OffsetRange("t", 3, 7, 10),
        include_headers=True,
    )
    batch.validate(full=True)
    assert tuple(batch.schema.names) == COLUMNS
    rows = batch.to_pylist()
    assert rows[0] == {
        "topic": "t", "partition": 3, "offset": 7, "key": b"k", "value": b"one",
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
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
    assert header_column(3).to_pylist() == [None] * 3
    assert header_column([None, []]).to_pylist() == [None, None]


def test_a_range_ends_at_its_end_and_not_behind_it():
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
    with pytest.raises(ReadStalled, match="nothing came for 1 ms at offset 5, 9 was promised"):
        offsets_of(Client([Message(4)]), OffsetRange("t", 0, 4, 9), stall_timeout_ms=1)


def test_an_offset_that_is_gone_is_a_loss():
    gone = Message(4, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
    with pytest.raises(RecordsLost, match="offset 4 is not in the log"):
        offsets_of(Client([gone]), OffsetRange("t", 0, 4, 9))


def test_large_values_come_in_small_batches():
    large = [Message(offset, b"x" * (1 << 20)) for offset in range(80)]
    polls = [large[at : at + 20] for at in range(0, 80, 20)]
    options = SourceOptions(client={})
    batches = list(message_batches(Client(*polls), OffsetRange("t", 0, 0, 80), options))
    assert [len(batch) for batch in batches] == [40, 40]
