"""`h2` as the oracle in both directions; what is mutated on the way stays within bounds."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.grpc.http2_peer import DEFAULTS, GOOD, Peer, block

from headrace.grpc import frames

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=20).map(
    lambda text: "x-" + text
)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60).map(str.strip)
METADATA = st.lists(st.tuples(NAMES, VALUES), max_size=6)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), METADATA, st.booleans()),
        st.tuples(st.just("data"), st.integers(0, 9), st.binary(max_size=3000), st.booleans()),
        st.tuples(st.just("padded"), st.integers(0, 9), st.binary(max_size=50)),
        st.tuples(st.just("trailers"), st.integers(0, 9), METADATA),
        st.tuples(st.just("reset"), st.integers(0, 9)),
        st.tuples(st.just("ping"), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just("window"), st.integers(1, 1000)),
        st.tuples(st.just("settings"), st.integers(0, 100_000)),
        st.tuples(st.just("respond"), st.integers(0, 9), st.binary(max_size=40_000)),
    ),
    max_size=25,
)


class Pair:
    """An h2 client and our machine, connected."""

    def __init__(self) -> None:
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.peer = Peer(begins=False)
        self.peer.machine.begin()
        self.client.initiate_connection()
        self.events = []
        self.sent = bytearray()
        self.expected: dict[int, tuple[list, bytearray]] = {}
        self.ended: set[int] = set()
        self.responses: dict[int, bytes] = {}

    def exchange(self, chunk: int = 1 << 20) -> None:
        """Until neither has anything to say."""
        while True:
            data = self.client.data_to_send()
            self.sent += data
            for at in range(0, len(data), chunk):
                self.peer.machine.receive(data[at : at + chunk])
            assert self.peer.machine.failure is None, self.peer.machine.failure.reason
            answer = self.peer.machine.outflow.take()
            if not answer and not data:
                return
            for event in self.client.receive_data(answer):
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                    self.client.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )

    def perform(self, action) -> None:
        name, *given = action
        if name == "open":
            metadata, is_last = given
            stream_id = self.client.get_next_available_stream_id()
            fields = [*GOOD.items(), *metadata]
            self.client.send_headers(stream_id, fields, end_stream=is_last)
            self.expected[stream_id] = (fields, bytearray())
            if is_last:
                self.ended.add(stream_id)
        elif name == "ping":
            self.client.ping(given[0])
        elif name == "window":
            self.client.increment_flow_control_window(given[0])
        elif name == "settings":
            self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: given[0]})
        else:
            self.on_stream(name, *given)

    def on_stream(self, name, number, *given) -> None:
        open_ones = [one for one in self.expected if one not in self.ended]
        if name == "respond":
            waiting = [
                one
                for one in self.expected
                if one not in self.responses and one in self.peer.machine.streams
            ]
            if waiting:
                self.respond(waiting[number % len(waiting)], given[0])
            return
        if not open_ones:
            return
        stream_id = open_ones[number % len(open_ones)]
        if name == "reset":
            self.client.reset_stream(stream_id)
            self.ended.add(stream_id)
            return
        if name == "trailers":
            self.client.send_headers(stream_id, given[0] or [("x-t", "1")], end_stream=True)
            self.ended.add(stream_id)
            return
        body = given[0]
        if len(body) + 60 > self.client.local_flow_control_window(stream_id):
            return
        is_last = name == "data" and given[1]
        padding = 50 if name == "padded" else None
        self.client.send_data(stream_id, body, end_stream=is_last, pad_length=padding)
        self.expected[stream_id][1].extend(body)
        if is_last:
            self.ended.add(stream_id)

    def respond(self, stream_id: int, body: bytes) -> None:
        stream = self.peer.live[stream_id]
        outflow = self.peer.machine.outflow
        outflow.head(stream, block({":status": "200", "x-number": str(stream_id)}))
        outflow.body(stream, body)
        outflow.head(stream, block({"grpc-status": "0"}), is_last=True)
        self.responses[stream_id] = body
        self.ended.add(stream_id)  # we tell the client that the rest is not needed


def performed(actions, chunk: int = 1 << 20) -> Pair:
    pair = Pair()
    pair.exchange(chunk)
    for action in actions:
        pair.perform(action)
        pair.exchange(chunk)
    return pair


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([1, 3, 7, 100, 1 << 20]))
def test_requests_of_an_h2_client_arrive_unchanged(actions, chunk):
    pair = performed(actions, chunk)
    for stream_id, (fields, body) in pair.expected.items():
        recorded = pair.peer.streams[stream_id]
        assert recorded.fields == [(name.encode(), value.encode()) for name, value in fields]
        assert bytes(recorded.body) == bytes(body)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_responses_reach_an_h2_client_unchanged(actions):
    pair = performed(actions)
    pair.client.increment_flow_control_window(1 << 24)
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    pair.exchange()
    bodies: dict[int, bytearray] = {}
    trailers = set()
    for event in pair.events:
        if isinstance(event, h2.events.ResponseReceived):
            assert dict(event.headers)["x-number"] == str(event.stream_id)
            bodies[event.stream_id] = bytearray()
        elif isinstance(event, h2.events.DataReceived):
            bodies[event.stream_id] += event.data
        elif isinstance(event, h2.events.TrailersReceived):
            assert event.headers == [("grpc-status", "0")]
            trailers.add(event.stream_id)
    assert {one: bytes(body) for one, body in bodies.items()} == pair.responses
    assert trailers == set(pair.responses)


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "drop", "repeat", "header"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def cut(data: bytes) -> list[bytes]:
    """Its frames, after the preface."""
    found, at = [], len(frames.PREFACE)
    while at < len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3])
        found.append(data[at:end])
        at = end
    return found


def mutated(data: bytes, mutations, first: int = 0) -> bytes:
    """The traffic with changes to frames from `first` on; with `first`, not to their lengths."""
    parts = cut(data)
    for kind, where, value in mutations:
        place = first + int(where * (len(parts) - first))
        if place >= len(parts):
            continue
        part = bytearray(parts[place])
        if kind == "flip":
            at = max(value % len(part), 3 if first else 0)
            part[at] ^= 1 << (value % 8)
        elif kind == "header":
            part[3 + value % 6] ^= 1 << (value % 3)  # type, flags or stream
        elif kind == "drop" and len(parts) > 1:
            del parts[place]
            continue
        else:
            parts.insert(place, bytes(part))
            continue
        parts[place] = bytes(part)
    return frames.PREFACE + b"".join(parts)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, MUTATIONS)
def test_mutated_traffic_never_raises_and_stays_within_bounds(actions, mutations):
    data = mutated(bytes(performed(actions).sent), mutations)
    peer = Peer(begins=False)
    peer.machine.begin()
    peer.machine.receive(data)
    held = sum(len(one.body) for one in peer.streams.values())
    assert held <= len(data)
    assert peer.machine.held_bytes <= frames.PAYLOAD_BYTES_MAX + 9 + DEFAULTS.header_block_bytes_max
    assert len(peer.machine.streams) <= DEFAULTS.streams_max
    assert len(peer.machine.outflow.take()) <= 64 * len(data)
    for stream_id, recorded in peer.streams.items():
        if stream_id not in peer.machine.streams and not recorded.has_ended:
            assert recorded.was_reset
