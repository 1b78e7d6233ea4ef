"""Abuse by number: clients that wait, send requests continuously, or send a byte now and then.

Invariants: as in `frames`. The cost of a crowd is measured from outside: the reference client's
latency, and the broker's memory, also per connection.
"""

from __future__ import annotations

import resource
import selectors
import socket
from typing import TYPE_CHECKING

from headrace.records.codec import Record, encode_batch
from headrace_verify.kafka_wire import FETCH, METADATA, PRODUCE, KafkaWire, request_bytes
from headrace_verify.wire.abuse import Case
from headrace_verify.wire.process import usage

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse, Peer

API_VERSIONS = 18
IDLE_COUNT, IDLE_COUNT_LONG = 2_000, 10_000
BUSY_COUNT, BUSY_COUNT_LONG = 100, 1_000
SLOW_COUNT, SLOW_COUNT_LONG = 200, 2_000
SPARE_DESCRIPTORS = 300
KEPT_BYTES_MAX = 32 * 1024
"""Memory per idle connection."""
DEAF_TOPIC, STALLED_TOPIC = "wire-deaf", "wire-stalled"
DEAF_COUNT, DEAF_BATCH_COUNT, DEAF_VALUE_BYTES = 60, 40, 900_000
"""Together they request 6 GB."""
STALLED_COUNT, STALLED_BYTES, STALLED_SENT_BYTES = 40, 60 << 20, 40 << 20
"""Together they begin requests of 2.4 GB and send 1.6 GB of them."""
ASKED_TOPIC, ASKED_PARTITIONS = "wire-asked", 4_000
ASKING_COUNT, ASKED_COUNT = 25, 250
"""Together they ask for 1.3 GB."""


def _ask(number: int = 1) -> bytes:
    return request_bytes(API_VERSIONS, 0, number)


def _crowd(abuse: Abuse, wanted: int) -> list[Peer]:
    """Open as many connections as this process may have; missing ones are reported."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_DESCRIPTORS
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    count = min(wanted, soft - SPARE_DESCRIPTORS)
    if count < wanted:
        abuse.skipped.append(f"{wanted - count} connections: a limit of {soft} descriptors")
    peers = []
    for number in range(count):
        try:
            peers.append(abuse.open())
        except OSError as error:
            abuse.expect(False, f"connection {number} is rejected: {error}")
            break
    return peers


def _is_served(abuse: Abuse, what: str) -> None:
    with abuse.open() as peer:
        peer.send(_ask())
        abuse.expect(peer.answer(30) is not None, f"a client beside {what} gets no response")


def thousands_of_idle_connections_harm_nobody(abuse: Abuse) -> None:
    pid = abuse.broker.pid
    before = usage(pid) if pid is not None else None
    peers = _crowd(abuse, IDLE_COUNT_LONG if abuse.is_long else IDLE_COUNT)
    _is_served(abuse, f"{len(peers)} idle ones")
    now = usage(pid) if pid is not None else None
    if before is not None and now is not None and peers:
        each = (now.memory_bytes - before.memory_bytes) // len(peers)
        abuse.expect(each < KEPT_BYTES_MAX, f"an idle connection costs {each} bytes")
    abuse.checked += len(peers)
    abuse.pause(2 if abuse.is_long else 0.3)


def a_thousand_busy_connections_leave_time_for_others(abuse: Abuse) -> None:
    peers = _crowd(abuse, BUSY_COUNT_LONG if abuse.is_long else BUSY_COUNT)
    asked = (_ask(), request_bytes(METADATA, 4, 1, topics=[], allow_auto_topic_creation=False))
    selector = selectors.DefaultSelector()
    for number, peer in enumerate(peers):
        peer.socket.setblocking(False)
        peer.socket.send(asked[number % 2])
        selector.register(peer.socket, selectors.EVENT_READ, asked[number % 2])
    answers = 0
    while abuse.has_time and selector.get_map():
        for key, _ in selector.select(0.2):
            client = key.fileobj
            assert isinstance(client, socket.socket)
            try:
                # The complete response arrives at once: a kilobyte at most.
                data = client.recv(1 << 16)
                if data:
                    client.send(key.data)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                selector.unregister(client)
                abuse.expect(False, "a busy client is disconnected")
                continue
            answers += 1
    left = len(selector.get_map())
    selector.close()
    abuse.expect(answers > len(peers), f"{len(peers)} busy clients get {answers} responses")
    abuse.checked += answers
    abuse.note(asked[0])
    abuse.expect(left == len(peers), f"{len(peers) - left} busy clients are disconnected")


def a_crowd_that_sends_a_byte_now_and_then_is_served_in_the_end(abuse: Abuse) -> None:
    peers = _crowd(abuse, SLOW_COUNT_LONG if abuse.is_long else SLOW_COUNT)
    data = _ask()
    for at in range(len(data)):
        for peer in peers:
            peer.send(data[at : at + 1])
        abuse.pause(1.0 if abuse.is_long else 0.02)
    answered = sum(peer.answer(30) is not None for peer in peers)
    abuse.expect(answered == len(peers), f"{answered} of {len(peers)} slow clients are answered")
    abuse.checked += answered


def clients_that_stop_in_the_middle_and_stay_harm_nobody(abuse: Abuse) -> None:
    data = _ask()
    for number, peer in enumerate(_crowd(abuse, SLOW_COUNT_LONG if abuse.is_long else SLOW_COUNT)):
        peer.send(data * 3 + data[: number % len(data)])
        if number % 3 == 0:
            peer.end_sending()
    _is_served(abuse, "clients that stop in the middle of a request and read nothing")
    abuse.checked += 1


def consumers_that_read_nothing_take_bounded_memory(abuse: Abuse) -> None:
    wire = KafkaWire(abuse.kafka)
    with wire:
        wire.create_topic(DEAF_TOPIC, 1, {})
        value = abuse.rng.randbytes(DEAF_VALUE_BYTES)
        for _ in range(DEAF_BATCH_COUNT):
            wire.produce(DEAF_TOPIC, 0, encode_batch([Record(0, 1, None, value)]))
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 30}
        topics = [{"topic": DEAF_TOPIC, "partitions": [part]}]
        fetch = request_bytes(FETCH, 4, 1, replica_id=-1, max_bytes=1 << 30, topics=topics)
        for peer in _crowd(abuse, DEAF_COUNT):
            peer.send(fetch * 3)
        _is_served(abuse, f"{DEAF_COUNT} consumers that read nothing")
        for offset in range(DEAF_BATCH_COUNT):
            found, _ = wire.fetch(DEAF_TOPIC, 0, offset)
            abuse.expect(value in found, f"a consumer beside them cannot read offset {offset}")
        wire.delete_topic(DEAF_TOPIC)


def producers_that_stop_within_large_requests_take_bounded_memory(abuse: Abuse) -> None:
    request = request_bytes(PRODUCE, 7, 1, acks=-1, timeout=5_000, topic_data=[])
    part = STALLED_BYTES.to_bytes(4, "big") + request[4:] + bytes(STALLED_SENT_BYTES)
    for peer in _crowd(abuse, STALLED_COUNT):
        peer.send(part, 0.5)
    _is_served(abuse, f"{STALLED_COUNT} producers that stop within large requests")
    with KafkaWire(abuse.kafka) as wire:
        wire.create_topic(STALLED_TOPIC, 1, {})
        value = abuse.rng.randbytes(DEAF_VALUE_BYTES)
        for offset in range(DEAF_BATCH_COUNT):
            wire.produce(STALLED_TOPIC, 0, encode_batch([Record(0, 1, None, value)]))
            found, _ = wire.fetch(STALLED_TOPIC, 0, offset)
            abuse.expect(value in found, f"record {offset} sent beside them is not stored")
        wire.delete_topic(STALLED_TOPIC)


def clients_that_ask_for_much_and_read_nothing_take_bounded_memory(abuse: Abuse) -> None:
    """Small requests with large answers: the metadata of all partitions, sent ahead."""
    with KafkaWire(abuse.kafka) as wire:
        wire.create_topic(ASKED_TOPIC, ASKED_PARTITIONS, {})
        ask = request_bytes(METADATA, 4, 1, topics=None, allow_auto_topic_creation=False)
        for peer in _crowd(abuse, ASKING_COUNT):
            peer.send(ask * ASKED_COUNT)
        _is_served(abuse, f"{ASKING_COUNT} clients that ask for all metadata and read nothing")
        abuse.pause(3)  # in which answers could be made
        wire.delete_topic(ASKED_TOPIC)


CASES = (
    Case("kafka", thousands_of_idle_connections_harm_nobody, 2),
    Case("kafka", a_thousand_busy_connections_leave_time_for_others, 3),
    Case("kafka", a_crowd_that_sends_a_byte_now_and_then_is_served_in_the_end, 2),
    Case("kafka", clients_that_stop_in_the_middle_and_stay_harm_nobody, 2),
    Case("kafka", consumers_that_read_nothing_take_bounded_memory),
    Case("kafka", producers_that_stop_within_large_requests_take_bounded_memory),
    Case("kafka", clients_that_ask_for_much_and_read_nothing_take_bounded_memory),
)
