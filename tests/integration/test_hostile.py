"""Clients that lie, stall, flood or send noise: refused, logged once, without harm to others."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

import pytest
from confluent_kafka import Producer
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.raw import (
    Closed,
    Raw,
    batch,
    error_codes,
    fetch_values,
    frame,
    parse,
    produce_values,
)
from tests.waiting import wait_until

TIMEOUT_S = 30
CORRUPT_MESSAGE, UNKNOWN_TOPIC, INVALID_REQUEST, INVALID_RECORD = 2, 3, 42, 87
INVALID_REQUIRED_ACKS = 21
MIB = 1024 * 1024


@pytest.fixture
def unharmed(broker, name):
    """A client that was there before, and goes on after, on one connection."""
    create_topic(broker.kafka, name)
    with Raw(broker.address) as raw:
        produced = produce_values(name, None, batch(b"before"))
        assert error_codes(raw.call(0, 7, **produced)) == [0]
        yield raw
        produced = produce_values(name, None, batch(b"after"))
        assert error_codes(raw.call(0, 7, **produced)) == [0]
        answer = raw.call(1, 11, **fetch_values(name, None, 0))
        assert answer.responses[0].partitions[0].high_watermark >= 2
    assert broker.get("/healthz")[0] == 200


def patched(request: bytes, at: int, value: bytes) -> bytes:
    return request[:at] + value + request[at + len(value) :]


METADATA = frame(3, 4, {"topics": [{"name": "x"}], "allow_auto_topic_creation": False})
PRODUCE = frame(0, 7, produce_values("x", None, batch(b"v")))
FETCH = frame(1, 4, fetch_values("x", None, 0))
JOIN = frame(11, 5, {"group_id": "g", "protocol_type": "consumer"})
MALFORMED = {
    "unknown API": patched(METADATA, 4, struct.pack(">h", 999)),
    "negative API": patched(METADATA, 4, struct.pack(">h", -1)),
    "API of brokers": patched(METADATA, 4, struct.pack(">h", 4)),
    "version too high": patched(METADATA, 6, struct.pack(">h", 99)),
    "negative version": patched(METADATA, 6, struct.pack(">h", -1)),
    "size zero": struct.pack(">i", 0),
    "size negative": struct.pack(">i", -5),
    "size of a short header": struct.pack(">i", 3) + b"abc",
    "size oversized": struct.pack(">i", 100 * MIB + 1),
    "size of two gigabytes": struct.pack(">i", 2**31 - 1),
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 200,
    "client id longer than the request": patched(METADATA, 12, struct.pack(">h", 30_000)),
    "more topics than bytes": patched(METADATA, 17, struct.pack(">i", 2**31 - 1)),
    "more topics than bytes in Produce": patched(PRODUCE, 25, struct.pack(">i", 2**31 - 1)),
    "more records than bytes in Produce": patched(PRODUCE, 40, struct.pack(">i", 2**31 - 1)),
    "more topics than bytes in Fetch": patched(FETCH, 34, struct.pack(">i", 2**30)),
    "a cut JoinGroup": struct.pack(">i", len(JOIN) - 9) + JOIN[4:-5],
    "nothing behind the header": struct.pack(">i", 13) + METADATA[4:17],
    "zeros": struct.pack(">i", 40) + bytes(40),
    "ones": struct.pack(">i", 400) + b"\xff" * 400,
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_closes_its_connection_with_one_line(broker, unharmed, what):
    mark = broker.log_size()
    with Raw(broker.address) as raw:
        raw.send(MALFORMED[what])
        assert raw.is_closed()
    # What others have done before may come due just now, and be told as news.
    lines = [line for line in broker.log_since(mark) if " INFO " not in line]
    assert len(lines) == 1, lines
    assert "closing its connection" in lines[0]
    assert ("TLS handshake" in lines[0]) == (what == "TLS")


def test_valid_requests_around_a_malformed_one_do_no_harm(broker, unharmed):
    with Raw(broker.address) as raw:
        raw.send(frame(18, 0, {}) + MALFORMED["unknown API"] + frame(18, 0, {}))
        try:
            raw.receive()  # Kafka answers the first or has closed by then; never the third.
            assert raw.is_closed()
        except Closed:
            pass


def test_noise_and_every_cut_of_good_requests_never_stop_the_broker(broker, unharmed):
    rng = random.Random(7)
    good = [METADATA, PRODUCE, FETCH, JOIN, frame(19, 5, {}), frame(18, 3, {}), frame(9, 8, {})]
    requests = [rng.randbytes(rng.randrange(1, 300)) for _ in range(150)]
    for request in good:
        for _ in range(60):
            changed = bytearray(request)
            for _ in range(rng.randrange(1, 5)):
                changed[rng.randrange(4, len(changed))] = rng.randrange(256)
            requests.append(bytes(changed))
        requests += [request[:end] for end in range(1, len(request), 3)]
    for request in requests:
        with Raw(broker.address) as raw:
            try:  # it may be closed before all is said
                raw.send(request)
                raw.socket.shutdown(socket.SHUT_WR)
                raw.socket.settimeout(0.05)
                raw.receive()
            except OSError:
                pass
    assert broker.is_alive()


def produce_code(raw: Raw, topic: str, records: bytes, **values) -> int:
    request = produce_values(topic, None, records) | values
    answer = raw.call(0, 7, **request)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_damaged_batches_are_refused_and_the_connection_goes_on(broker, unharmed, name):
    good = batch(b"value")
    cut = good[:-3]
    crc = bytearray(good)
    crc[20] ^= 1
    data = bytearray(good)
    data[-2] ^= 1
    magic = bytearray(good)
    magic[16] = 1
    length = patched(good, 8, struct.pack(">i", len(good) * 2))
    negative = patched(good, 8, struct.pack(">i", -5))
    for damaged in (cut, bytes(crc), bytes(data), bytes(magic), length, negative, b"x" * 200):
        assert produce_code(unharmed, name, damaged) in {CORRUPT_MESSAGE, 43, INVALID_RECORD}
    assert produce_code(unharmed, name, good + good) == INVALID_RECORD
    assert produce_code(unharmed, name, b"") in {CORRUPT_MESSAGE, INVALID_RECORD}
    assert produce_code(unharmed, name, good, acks=7) == INVALID_REQUIRED_ACKS
    assert produce_code(unharmed, name + "-absent", good) == UNKNOWN_TOPIC
    answer = unharmed.call(1, 4, **fetch_values(name, None, 0))
    assert answer.responses[0].partitions[0].high_watermark == 1


def test_one_bad_partition_in_a_request_harms_no_other(broker, unharmed, name):
    good = {"index": 0, "records": batch(b"good")}
    bad = {"index": 0, "records": batch(b"bad")[:-1]}
    unknown = {"index": 77, "records": batch(b"none")}
    topics = [
        {"name": name, "partition_data": [good, unknown]},
        {"name": name + "-absent", "partition_data": [good]},
        {"name": name, "partition_data": [bad]},
    ]
    answer = unharmed.call(0, 7, acks=-1, timeout=1000, topic_data=topics)
    codes = sorted(error_codes(answer))
    assert codes == sorted([0, UNKNOWN_TOPIC, UNKNOWN_TOPIC, CORRUPT_MESSAGE])


def test_records_that_lie_about_their_count_are_not_served_to_others(broker, unharmed, name):
    import crc32c

    lying = bytearray(batch(b"value"))
    struct.pack_into(">i", lying, 57, 1_000_000)  # the count of records
    struct.pack_into(">i", lying, 23, 999_999)  # the last offset's delta
    struct.pack_into(">I", lying, 17, crc32c.crc32c(bytes(lying[21:])))
    code = produce_code(unharmed, name, bytes(lying))
    negative = bytearray(batch(b"value"))
    struct.pack_into(">i", negative, 57, -3)
    struct.pack_into(">I", negative, 17, crc32c.crc32c(bytes(negative[21:])))
    assert produce_code(unharmed, name, bytes(negative)) in {CORRUPT_MESSAGE, INVALID_RECORD}
    mismatch = bytearray(batch(b"value"))
    struct.pack_into(">i", mismatch, 23, 5)
    struct.pack_into(">I", mismatch, 17, crc32c.crc32c(bytes(mismatch[21:])))
    assert produce_code(unharmed, name, bytes(mismatch)) in {CORRUPT_MESSAGE, INVALID_RECORD}
    assert code in {CORRUPT_MESSAGE, INVALID_RECORD}, "a count that the bytes cannot hold"


# --- slow, half, many ------------------------------------------------------------------------


def test_a_client_that_sends_byte_by_byte_is_served(broker, unharmed, name):
    request = frame(0, 7, produce_values(name, None, batch(b"slow")))
    with Raw(broker.address) as raw:
        for at in range(len(request)):
            raw.send(request[at : at + 1])
            if at % 16 == 0:
                time.sleep(0.001)
        assert error_codes(parse(0, 7, raw.receive())) == [0]


def test_half_sent_requests_are_forgotten_with_their_connection(broker, unharmed):
    before = broker.memory_bytes()
    for _ in range(50):
        with Raw(broker.address) as raw:
            raw.send(struct.pack(">i", 50 * MIB) + bytes(MIB))
    wait_until(lambda: broker.memory_bytes() < before + 40 * MIB)


def test_claimed_sizes_take_no_memory(broker, unharmed):
    before = broker.memory_bytes()
    open_ = [Raw(broker.address) for _ in range(100)]
    for raw in open_:
        raw.send(struct.pack(">i", 100 * MIB) + b"\x00\x00\x00\x07")
    assert error_codes(unharmed.call(18, 0)) == [0]
    wait_until(lambda: broker.memory_bytes() < before + 20 * MIB)
    for raw in open_:
        raw.socket.close()


def flood(raw: Raw, data: bytes, seconds: float) -> int:
    """Send without ever reading; bytes that the broker took."""
    raw.socket.setblocking(False)
    sent, deadline = 0, time.monotonic() + seconds
    view = memoryview(data)
    while time.monotonic() < deadline:
        try:
            sent += raw.socket.send(view[sent % len(data) :])
        except BlockingIOError:
            time.sleep(0.01)
    return sent


def test_a_client_that_asks_for_much_and_reads_nothing_takes_bounded_memory(own_broker):
    create_topic(own_broker.kafka, "large", max_message_bytes=20 * MIB)
    value = random.Random(1).randbytes(4 * MIB)
    Confluent_large(own_broker.kafka, "large", value, 12)
    before = own_broker.memory_bytes()
    asks = fetch_values("large", None, 0, max_bytes=50 * MIB)
    asks["topics"][0]["partitions"][0]["partition_max_bytes"] = 50 * MIB
    request = frame(1, 4, asks)
    with Raw(own_broker.address) as raw:
        flood(raw, request * 1000, 3)
        with Raw(own_broker.address) as other:
            assert error_codes(other.call(18, 0)) == [0]
        grown = own_broker.memory_bytes() - before
    assert grown < 300 * MIB, f"{grown // MIB} MiB for one client that does not read"
    assert own_broker.is_alive()


def Confluent_large(bootstrap: str, topic: str, value: bytes, count: int) -> None:  # noqa: N802
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20 * MIB})
    for _ in range(count):
        producer.produce(topic, value)
        assert producer.flush(90) == 0


def test_a_flood_of_small_requests_unread_takes_bounded_memory(broker, unharmed):
    before = broker.memory_bytes()
    with Raw(broker.address) as raw:
        flood(raw, frame(3, 4, {"topics": None}) * 1000, 2)
        assert error_codes(unharmed.call(18, 0)) == [0]
        assert broker.memory_bytes() - before < 100 * MIB


def test_requests_pipelined_by_the_thousand_are_all_answered_in_order(broker, unharmed, name):
    count = 3000
    with Raw(broker.address) as raw:
        data = b"".join(
            frame(0, 7, produce_values(name, None, batch(str(number).encode())), number)
            for number in range(count)
        )
        sender = threading.Thread(target=raw.send, args=(data,))
        sender.start()
        for number in range(count):
            assert error_codes(parse(0, 7, raw.receive(), number)) == [0]
        sender.join()
    found = Confluent.consume(broker.kafka, name, count + 1)
    assert [record.value for record in found[1:]] == [str(n).encode() for n in range(count)]


def test_a_client_that_closes_its_sending_side_still_gets_its_answers(broker, unharmed):
    with Raw(broker.address) as raw:
        raw.send(frame(18, 0, {}) * 3)
        raw.socket.shutdown(socket.SHUT_WR)
        for _ in range(3):
            assert error_codes(parse(18, 0, raw.receive())) == [0]


def test_a_thousand_connections_come_and_go(broker, unharmed):
    before = broker.memory_bytes()
    for _ in range(5):
        open_ = [Raw(broker.address) for _ in range(200)]
        for raw in open_:
            raw.send(frame(18, 0, {}))
        for raw in open_:
            assert error_codes(parse(18, 0, raw.receive())) == [0]
            raw.socket.close()
    assert broker.memory_bytes() - before < 40 * MIB


def test_waiting_fetches_of_clients_that_vanish_are_forgotten(broker, unharmed, name):
    before = broker.memory_bytes()
    for _ in range(200):
        with Raw(broker.address) as raw:
            raw.send(frame(1, 4, fetch_values(name, None, 1, min_bytes=1, max_wait=600_000)))
    assert broker.memory_bytes() - before < 40 * MIB
    assert error_codes(unharmed.call(0, 7, **produce_values(name, None, batch(b"wakes")))) == [0]


def test_a_join_of_a_client_that_vanished_does_not_hold_its_group(broker, unharmed, name):
    protocols = [{"name": "range", "metadata": b""}]
    join = {"session_timeout": 6_000, "rebalance_timeout": 6_000, "protocols": protocols}
    join |= {"group_id": name, "protocol_type": "consumer"}
    with Raw(broker.address) as raw:
        raw.send(frame(11, 3, join))
        time.sleep(0.1)
    with Raw(broker.address) as raw:
        assert error_codes(raw.call(11, 3, **join)) == [0]


def test_absurd_wishes_are_refused(broker, unharmed, name):
    def created(**values: object) -> list[int]:
        topic = {"name": name + "-new", "num_partitions": 1, "replication_factor": 1} | values
        return error_codes(unharmed.call(19, 5, topics=[topic], timeout=1000))

    assert created(num_partitions=2**31 - 1) == [37]
    assert created(num_partitions=-7) == [37]
    assert created(replication_factor=32_000) == [38]
    for bad in ("", ".", "..", "a/b", "a" * 250, "a\x00b", "ü", "../../etc/passwd"):
        assert created(name=bad) == [17], bad
    huge = [{"name": "x" * 30_000, "value": "y" * 30_000}]
    assert created(configs=huge) == [40]
    partition = {"partition_index": 0, "timestamp": -99, "current_leader_epoch": -1}
    topics = [{"name": name, "partitions": [partition]}]
    assert set(error_codes(unharmed.call(2, 5, replica_id=-1, topics=topics))) != {0}
    far = fetch_values(name, None, 2**62)
    assert 1 in error_codes(unharmed.call(1, 4, **far))
    assert 1 in error_codes(unharmed.call(1, 4, **fetch_values(name, None, -5)))


def test_a_fault_inside_a_request_is_answered_or_closed_and_logged(broker, name, own_broker):
    # The metadata's file is taken away from under the broker: the request fails, the broker stays.
    create_topic(own_broker.kafka, "kept")
    Confluent.produce(own_broker.kafka, "kept", [Rec(b"k", b"v")])
    own_broker.is_damaged = True
    for path in own_broker.data_dir.glob("metadata.sqlite*"):
        path.chmod(0o000)
        path.rename(path.with_name(path.name + ".away"))
        path.mkdir()
    with Raw(own_broker.address) as raw:
        try:
            topic = {"name": "new", "num_partitions": 1, "replication_factor": 1}
            raw.call(19, 5, topics=[topic], timeout=1000)
        except Closed:
            pass
    Confluent.produce(own_broker.kafka, "kept", [Rec(b"k", b"v2")])
    assert len(Confluent.consume(own_broker.kafka, "kept", 2)) == 2
    assert own_broker.is_alive()


@pytest.mark.parametrize("acks", [0, -1])
def test_a_flood_of_records_takes_bounded_memory(own_broker, acks):
    create_topic(own_broker.kafka, "flooded")
    value = random.Random(2).randbytes(900_000)
    before = own_broker.memory_bytes()
    with Raw(own_broker.address) as raw:
        request = frame(0, 7, produce_values("flooded", None, batch(value), acks))
        flood(raw, request, 3)
        grown = own_broker.memory_bytes() - before
        with Raw(own_broker.address) as other:
            assert error_codes(other.call(18, 0)) == [0]
    assert grown < 500 * MIB, f"{grown // MIB} MiB"


def test_messages_of_64_mib_pass_where_a_topic_allows_them_in_bounded_memory(own_broker):
    count, size = 4, 64 * MIB
    create_topic(own_broker.kafka, "huge", max_message_bytes=size + 1_000)
    value = random.Random(4).randbytes(MIB) * 64
    producer = Producer({"bootstrap.servers": own_broker.kafka, "message.max.bytes": size + 1_000})
    before, errors = own_broker.memory_bytes(), []
    for number in range(count):
        key = f"{number}"
        producer.produce("huge", value, key, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S * 4) == 0
    assert errors == [None] * count
    wanted = [Rec(b"%d" % number, value) for number in range(count)]
    assert Confluent.consume(own_broker.kafka, "huge", count) == wanted
    grown = own_broker.peak_memory_bytes() - before
    assert grown < (count - 1) * size, f"{grown // MIB} MiB"


def test_consumers_that_read_nothing_take_bounded_memory_and_slow_no_other_client(own_broker):
    # Each asks for all of it, three times over, and reads none.
    create_topic(own_broker.kafka, "large")
    value = random.Random(3).randbytes(900_000)
    with Raw(own_broker.address) as raw:
        for _ in range(40):
            produced = produce_values("large", None, batch(value))
            assert error_codes(raw.call(0, 7, **produced)) == [0]
    wanted = fetch_values("large", None, 0, min_bytes=1)
    wanted["topics"][0]["partitions"][0]["partition_max_bytes"] = 40 * MIB
    before = own_broker.memory_bytes()
    deaf = [Raw(own_broker.address) for _ in range(60)]
    try:
        peak = 0
        for each in deaf:
            for _ in range(3):
                each.send(frame(1, 11, wanted))
            peak = max(peak, own_broker.memory_bytes())
        for _ in range(5):
            assert len(Confluent.consume(own_broker.kafka, "large", 40)) == 40
            peak = max(peak, own_broker.memory_bytes())
    finally:
        for each in deaf:
            each.close()
    assert peak - before < 600 * MIB, f"{(peak - before) // MIB} MiB"
    wait_until(lambda: own_broker.memory_bytes() - before < 300 * MIB)


def test_an_address_has_no_more_connections_than_it_may(tmp_path):
    """Of Kafka and HTTP together, and changed while the broker runs."""
    broker = Broker(tmp_path, "--max-connections-per-ip", "3").start()
    with contextlib.ExitStack() as sockets:

        def is_open(address: str, limit_s: float = 0.3) -> bool:
            """Whether the broker keeps a new connection for so long."""
            host, _, port = address.rpartition(":")
            one = sockets.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
            one.settimeout(limit_s)
            try:
                one.recv(1)
            except TimeoutError:
                return True
            except ConnectionResetError:
                return False
            return False

        sockets.callback(broker.stop)
        with socket.create_connection(broker.address, TIMEOUT_S):
            assert is_open(broker.kafka)
            assert is_open(broker.http)
            assert not is_open(broker.kafka, TIMEOUT_S)
            assert not is_open(broker.http, TIMEOUT_S)
        wait_until(lambda: is_open(broker.kafka), TIMEOUT_S)
        assert "max.connections.per.ip, 3 for 127.0.0.1" in broker.log()
