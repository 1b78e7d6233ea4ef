"""Abuse of frames and connections: wrong sizes, slow senders, clients that ignore responses.

Invariants: each function is a case, and its name is the guarantee; none uses the broker's
internals.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from headrace.kafka.client.exchange import API_VERSIONS, framed, request_frame
from headrace_verify.kafka_wire import METADATA, PRODUCE, request_bytes
from headrace_verify.wire.abuse import PATIENCE_S, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.wire.abuse import Abuse, Peer

INT32_MAX = 2**31 - 1
LIMIT_BYTES = 100 << 20
"""`socket.request.max.bytes`"""
PIPELINED = 5_000


def _ask(correlation_id: int = 1) -> bytes:
    return request_bytes(API_VERSIONS, 0, correlation_id)


def _header(api: int, version: int) -> bytes:
    return request_frame(b"evil", api, version, 1, bytes(40), is_flexible=False)


def _is_answered(peer: Peer, correlation_id: int = 1) -> bool:
    answer = peer.answer()
    return answer is not None and struct.unpack_from(">i", answer)[0] == correlation_id


def a_frame_of_an_impossible_length_ends_its_connection(abuse: Abuse) -> None:
    for length in (0, -1, -(2**31), INT32_MAX, LIMIT_BYTES + 1, 1, 7):
        abuse.must_close(struct.pack(">i", length) + b"\x00\x12\x00\x00", f"length {length}")


def an_impossible_length_is_seen_whichever_way_its_bytes_arrive(abuse: Abuse) -> None:
    for length in (0, -1, INT32_MAX, LIMIT_BYTES + 1):
        with abuse.open() as peer:
            for byte in struct.pack(">i", length):
                peer.send(bytes([byte]))
                abuse.pause(0.01)
            timeout_s = 0.2 if abuse.faults else PATIENCE_S
            is_closed = peer.is_closed(timeout_s)
            abuse.expect(is_closed, f"length {length}, byte by byte: it stays open")
        abuse.must_close(_ask() + struct.pack(">i", length), f"length {length} after a request")


def claimed_sizes_take_no_memory(abuse: Abuse) -> None:
    for _ in range(100):
        abuse.open().send(struct.pack(">i", LIMIT_BYTES) + b"\x00\x00\x00\x07")
    with abuse.open() as peer:
        peer.send(_ask())
        abuse.expect(_is_answered(peer), "100 half frames keep others from being served")


def half_a_large_frame_is_forgotten_with_its_connection(abuse: Abuse) -> None:
    for _ in range(10):
        with abuse.open() as peer:
            peer.send(struct.pack(">i", 50 << 20) + bytes(4 << 20))
        abuse.checked += 1


def byte_by_byte_is_slow_and_served(abuse: Abuse) -> None:
    data = _ask()
    pause_s = 1.0 if abuse.is_long else 0.05
    with abuse.open() as peer:
        for at in range(len(data)):
            peer.send(data[at : at + 1])
            abuse.pause(pause_s)
        abuse.expect(_is_answered(peer), "a request sent byte by byte gets no response")


def _noise(abuse: Abuse) -> Iterator[bytes]:
    rng = abuse.rng
    while True:
        data = rng.randbytes(rng.randrange(1, 400))
        kind = rng.randrange(3)
        if kind == 1:
            data = framed(data)
        elif kind == 2:
            data = framed(struct.pack(">hhi", rng.randrange(80), rng.randrange(20), 1) + data)
        yield data


def random_bytes_harm_nobody(abuse: Abuse) -> None:
    abuse.each(_noise(abuse))


def an_unknown_api_ends_its_connection(abuse: Abuse) -> None:
    for api in (-1, -32768, 999, 32767, 4, 5, 6, 7):
        abuse.must_close(_header(api, 0), f"API {api}")


def an_unknown_version_is_answered_or_ends_its_connection(abuse: Abuse) -> None:
    for version in (-1, -32768, 32767, 99):
        for api in (PRODUCE, 1, METADATA, 11, 19):
            abuse.must_close(_header(api, version), f"API {api} in version {version}")
        with abuse.open() as peer:
            peer.send(_header(API_VERSIONS, version))
            answer = peer.answer()
            has_error = answer is not None and answer[4:6] == b"\x00\x23"
            abuse.expect(has_error, f"ApiVersions v{version} is not answered by error 35 (KIP-511)")


def a_correlation_id_used_again_is_answered_again(abuse: Abuse) -> None:
    with abuse.open() as peer:
        peer.send(_ask(7) * 200)
        answered = sum(_is_answered(peer, 7) for _ in range(200))
    abuse.expect(answered == 200, f"{answered} of 200 requests of one id are answered")


def half_closed_clients_get_what_they_asked_for(abuse: Abuse) -> None:
    for count in (1, 3, 300):
        with abuse.open() as peer:
            peer.send(_ask() * count)
            peer.end_sending()
            answered = sum(_is_answered(peer) for _ in range(count))
            abuse.expect(answered == count, f"{answered} of {count} answered after a half-close")
            abuse.expect(peer.is_closed(), "a half-closed client is kept")


def thousands_of_requests_whose_answers_nobody_reads_take_bounded_memory(abuse: Abuse) -> None:
    everything = request_bytes(METADATA, 4, 1, topics=None, allow_auto_topic_creation=False)
    for data in (_ask(), everything):
        with abuse.open() as peer:
            peer.send(data * PIPELINED, 2)
            abuse.pause(0.3)
        abuse.checked += PIPELINED


def thousands_of_pipelined_requests_are_answered_in_order(abuse: Abuse) -> None:
    count = 2_000
    with abuse.open() as peer:
        peer.send(b"".join(_ask(number) for number in range(count)))
        for number in range(count):
            if not _is_answered(peer, number):
                abuse.expect(False, f"the response to request {number} is not the next one")
                return
        abuse.checked += count


def connections_that_come_and_go_leave_nothing(abuse: Abuse) -> None:
    for _ in range(10):
        for _ in range(100):
            peer = abuse.open()
            peer.send(_ask()[: abuse.rng.randrange(20)])
        abuse.close()
        abuse.checked += 100


CASES = (
    Case("kafka", a_frame_of_an_impossible_length_ends_its_connection),
    Case("kafka", an_impossible_length_is_seen_whichever_way_its_bytes_arrive),
    Case("kafka", claimed_sizes_take_no_memory),
    Case("kafka", half_a_large_frame_is_forgotten_with_its_connection),
    Case("kafka", byte_by_byte_is_slow_and_served, 1),
    Case("kafka", an_unknown_api_ends_its_connection),
    Case("kafka", an_unknown_version_is_answered_or_ends_its_connection),
    Case("kafka", a_correlation_id_used_again_is_answered_again),
    Case("kafka", half_closed_clients_get_what_they_asked_for),
    Case("kafka", thousands_of_requests_whose_answers_nobody_reads_take_bounded_memory),
    Case("kafka", thousands_of_pipelined_requests_are_answered_in_order),
    Case("kafka", connections_that_come_and_go_leave_nothing),
    Case("kafka", random_bytes_harm_nobody, 2),
)
