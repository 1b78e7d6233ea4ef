"""The cases of h2spec (its list of RFC 9113 and RFC 7541), each as the bytes that it sends.

h2spec itself runs against the served port in `tests/integration/test_grpc_tools.py` where Go can
build it; its two cases that differ are the last ones here.
"""

from __future__ import annotations

import pytest
from tests.unit.grpc.http2_peer import (
    GOOD,
    Peer,
    block,
    continuation,
    data,
    headers,
    priority,
)

from headrace.grpc import frames
from headrace.grpc.frames import (
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    STREAM_CLOSED,
)
from headrace.grpc.limits import Limits

END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 0x20
OPEN = headers(1, flags=END_HEADERS)
ENDED = headers(1)
RESET = frames.rst_stream(1, frames.CANCEL)


def goaway(code):
    return "goaway", code


def rst(code):
    return "rst", code


def request(*, drop=(), **changed):
    fields = {name: value for name, value in GOOD.items() if name not in drop}
    return headers(1, block({**fields, **changed}))


def pairs(*more):
    return headers(1, block([*GOOD.items(), *more]))


def setting(name, value):
    return frames.settings({name: value})


FRAME = frames.frame
CASES = {
    # 3.4 and 4
    "4.1 a frame of unknown type": (None, FRAME(0x16, 0, 0, b"12345678")),
    "4.1 undefined flags": (None, FRAME(frames.PING, 0xFE, 0, b"12345678")),
    "4.1 the reserved bit of a stream id": (None, FRAME(frames.PING, 0, 1 << 31, b"12345678")),
    "4.2 DATA of 2^14 bytes": (None, OPEN + data(1, bytes(16384), END_STREAM)),
    "4.2 DATA above the frame size": (goaway(FRAME_SIZE_ERROR), OPEN + data(1, bytes(16385))),
    "4.2 HEADERS above the frame size": (goaway(FRAME_SIZE_ERROR), headers(1, bytes(16385))),
    "4.3 an invalid header block": (goaway(COMPRESSION_ERROR), headers(1, b"\x40")),
    "4.3 PRIORITY within a header block": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + priority(1, 0),
    ),
    "4.3 HEADERS of another stream within a header block": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + headers(3),
    ),
    # 5.1
    "5.1 idle: DATA": (goaway(PROTOCOL_ERROR), data(1, b"test", END_STREAM)),
    "5.1 idle: RST_STREAM": (goaway(PROTOCOL_ERROR), RESET),
    "5.1 idle: WINDOW_UPDATE": (goaway(PROTOCOL_ERROR), frames.window_update(1, 100)),
    "5.1 idle: CONTINUATION": (goaway(PROTOCOL_ERROR), continuation(1, block())),
    "5.1 half-closed: DATA": (rst(STREAM_CLOSED), ENDED + data(1, b"test", END_STREAM)),
    "5.1 half-closed: HEADERS": (rst(STREAM_CLOSED), ENDED + ENDED),
    "5.1 half-closed: CONTINUATION": (goaway(PROTOCOL_ERROR), ENDED + continuation(1, block())),
    "5.1 closed by RST_STREAM: DATA": (goaway(STREAM_CLOSED), ENDED + RESET + data(1, b"test")),
    "5.1 closed by RST_STREAM: HEADERS": (goaway(STREAM_CLOSED), ENDED + RESET + ENDED),
    "5.1 closed by RST_STREAM: CONTINUATION": (
        goaway(PROTOCOL_ERROR),
        ENDED + RESET + continuation(1, block()),
    ),
    "5.1.1 an even stream id": (goaway(PROTOCOL_ERROR), headers(2)),
    "5.1.1 a smaller stream id": (goaway(PROTOCOL_ERROR), headers(5) + headers(3)),
    "5.3.1 HEADERS that depend on themselves": (
        goaway(PROTOCOL_ERROR),
        headers(1, b"\0\0\0\1\xff" + block(), 0x25),
    ),
    "5.3.1 PRIORITY that depends on itself": (goaway(PROTOCOL_ERROR), priority(2, 2)),
    "5.5 an unknown extension frame": (None, FRAME(0xFF, 0, 0, b"unknown")),
    "5.5 an unknown frame within a header block": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + FRAME(0xFF, 0, 0, b"unknown"),
    ),
    # 6.1 to 6.4
    "6.1 DATA on stream 0": (goaway(PROTOCOL_ERROR), data(0, b"test")),
    "6.1 DATA on a half-closed stream": (rst(STREAM_CLOSED), ENDED + data(1, b"test")),
    "6.1 DATA with too much padding": (
        goaway(PROTOCOL_ERROR),
        OPEN + data(1, b"\x06\x54\x65\x73\x74", END_STREAM | PADDED),
    ),
    "6.2 HEADERS followed by PRIORITY": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + priority(3, 1),
    ),
    "6.2 HEADERS on stream 0": (goaway(PROTOCOL_ERROR), headers(0)),
    "6.2 HEADERS with too much padding": (
        goaway(PROTOCOL_ERROR),
        headers(1, b"\xff" + block(), 5 | PADDED),
    ),
    "6.3 PRIORITY on stream 0": (goaway(PROTOCOL_ERROR), priority(0, 1)),
    "6.3 PRIORITY of 4 bytes": (rst(FRAME_SIZE_ERROR), FRAME(frames.PRIORITY, 0, 1, bytes(4))),
    "6.4 RST_STREAM on stream 0": (goaway(PROTOCOL_ERROR), frames.rst_stream(0, 8)),
    "6.4 RST_STREAM of 3 bytes": (
        goaway(FRAME_SIZE_ERROR),
        OPEN + FRAME(frames.RST_STREAM, 0, 1, bytes(3)),
    ),
    # 6.5
    "6.5 SETTINGS: an acknowledgement with payload": (
        goaway(FRAME_SIZE_ERROR),
        FRAME(frames.SETTINGS, 1, 0, bytes(1)),
    ),
    "6.5 SETTINGS on a stream": (goaway(PROTOCOL_ERROR), FRAME(frames.SETTINGS, 0, 1, bytes(6))),
    "6.5 SETTINGS of 3 bytes": (goaway(FRAME_SIZE_ERROR), FRAME(frames.SETTINGS, 0, 0, bytes(3))),
    "6.5.2 ENABLE_PUSH of 2": (goaway(PROTOCOL_ERROR), setting(2, 2)),
    "6.5.2 INITIAL_WINDOW_SIZE of 2^31": (goaway(FLOW_CONTROL_ERROR), setting(4, 1 << 31)),
    "6.5.2 MAX_FRAME_SIZE of 2^14 - 1": (goaway(PROTOCOL_ERROR), setting(5, (1 << 14) - 1)),
    "6.5.2 MAX_FRAME_SIZE of 2^24": (goaway(PROTOCOL_ERROR), setting(5, 1 << 24)),
    "6.5.2 an unknown setting": (None, setting(0xFF, 1)),
    # 6.7 to 6.9
    "6.7 PING: an acknowledgement that nobody asked for": (
        None,
        FRAME(frames.PING, 1, 0, b"invalid8"),
    ),
    "6.7 PING on a stream": (goaway(PROTOCOL_ERROR), FRAME(frames.PING, 0, 1, bytes(8))),
    "6.7 PING of 6 bytes": (goaway(FRAME_SIZE_ERROR), FRAME(frames.PING, 0, 0, bytes(6))),
    "6.8 GOAWAY on a stream": (goaway(PROTOCOL_ERROR), FRAME(frames.GOAWAY, 0, 1, bytes(8))),
    "6.9 WINDOW_UPDATE of 0": (goaway(PROTOCOL_ERROR), frames.window_update(0, 0)),
    "6.9 WINDOW_UPDATE of 0 on a stream": (
        rst(PROTOCOL_ERROR),
        OPEN + frames.window_update(1, 0),
    ),
    "6.9 WINDOW_UPDATE of 3 bytes": (
        goaway(FRAME_SIZE_ERROR),
        FRAME(frames.WINDOW_UPDATE, 0, 0, bytes(3)),
    ),
    "6.9.1 windows above 2^31 - 1": (
        goaway(FLOW_CONTROL_ERROR),
        frames.window_update(0, 2**31 - 1) * 2,
    ),
    "6.9.1 a stream's window above 2^31 - 1": (
        rst(FLOW_CONTROL_ERROR),
        OPEN + frames.window_update(1, 2**31 - 1) * 2,
    ),
    "6.9.2 an initial window above 2^31 - 1 for a stream": (
        goaway(FLOW_CONTROL_ERROR),
        OPEN + frames.window_update(1, 2**31 - 1 - 65_535) + setting(4, 65_536),
    ),
    # 6.10
    "6.10 several CONTINUATION frames": (
        None,
        headers(1, block()[:9], END_STREAM)
        + continuation(1, block()[9:20], 0)
        + continuation(1, block()[20:]),
    ),
    "6.10 CONTINUATION after END_HEADERS": (
        goaway(PROTOCOL_ERROR),
        ENDED + continuation(1, block()),
    ),
    "6.10 CONTINUATION on stream 0": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + continuation(0, block()),
    ),
    "6.10 DATA instead of CONTINUATION": (
        goaway(PROTOCOL_ERROR),
        headers(1, flags=END_STREAM) + data(1, b"test"),
    ),
    "6.10 CONTINUATION after another with END_HEADERS": (
        goaway(PROTOCOL_ERROR),
        headers(1, block()[:9], END_STREAM) + continuation(1, block()[9:]) + continuation(1, b""),
    ),
    # 7
    "7 GOAWAY with an unknown code": (
        None,
        FRAME(frames.GOAWAY, 0, 0, bytes(7) + b"\xff") + FRAME(frames.PING, 0, 0, bytes(8)),
    ),
    "7 RST_STREAM with an unknown code": (None, OPEN + frames.rst_stream(1, 255)),
    # 8.1
    "8.1 a second HEADERS without END_STREAM": (rst(PROTOCOL_ERROR), OPEN + OPEN),
    "8.1.2 a name in upper case": (rst(PROTOCOL_ERROR), pairs(("X-TEST", "ok"))),
    "8.1.2.1 an unknown pseudo-header field": (rst(PROTOCOL_ERROR), request(**{":test": "ok"})),
    "8.1.2.1 a pseudo-header field of responses": (
        rst(PROTOCOL_ERROR),
        request(**{":status": "200"}),
    ),
    "8.1.2.1 a pseudo-header field in trailers": (
        rst(PROTOCOL_ERROR),
        OPEN + headers(1, block({":method": "200"})),
    ),
    "8.1.2.1 a pseudo-header field after a regular one": (
        rst(PROTOCOL_ERROR),
        headers(1, block([("x-test", "ok"), *GOOD.items()])),
    ),
    "8.1.2.2 a connection-specific field": (rst(PROTOCOL_ERROR), request(connection="keep-alive")),
    "8.1.2.2 te other than trailers": (rst(PROTOCOL_ERROR), request(te="trailers, deflate")),
    "8.1.2.3 an empty :path": (rst(PROTOCOL_ERROR), request(**{":path": ""})),
    "8.1.2.3 no :method": (rst(PROTOCOL_ERROR), request(drop=(":method",))),
    "8.1.2.3 no :scheme": (rst(PROTOCOL_ERROR), request(drop=(":scheme",))),
    "8.1.2.3 no :path": (rst(PROTOCOL_ERROR), request(drop=(":path",))),
    "8.1.2.3 :method twice": (rst(PROTOCOL_ERROR), pairs((":method", "POST"))),
    "8.1.2.3 :scheme twice": (rst(PROTOCOL_ERROR), pairs((":scheme", "http"))),
    "8.1.2.3 :path twice": (rst(PROTOCOL_ERROR), pairs((":path", "/"))),
    "8.1.2.6 content-length that DATA contradicts": (
        rst(PROTOCOL_ERROR),
        headers(1, block(content_length="1"), END_HEADERS) + data(1, b"test", END_STREAM),
    ),
    "8.1.2.6 content-length that all DATA contradict": (
        rst(PROTOCOL_ERROR),
        headers(1, block(content_length="9"), END_HEADERS)
        + data(1, b"test")
        + data(1, b"test", END_STREAM),
    ),
    "8.2 PUSH_PROMISE": (goaway(PROTOCOL_ERROR), FRAME(frames.PUSH_PROMISE, 4, 1, bytes(4))),
    # RFC 7541
    "hpack 2.3.3 an index that no table has": (goaway(COMPRESSION_ERROR), headers(1, b"\xff\x46")),
    "hpack 2.3.3 a name's index that no table has": (
        goaway(COMPRESSION_ERROR),
        headers(1, block() + b"\x7f\x46\1a"),
    ),
    "hpack 4.2 a table size update at the end": (
        goaway(COMPRESSION_ERROR),
        headers(1, block() + b"\x20"),
    ),
    "hpack 5.2 Huffman padding of more than 7 bits": (
        goaway(COMPRESSION_ERROR),
        headers(1, block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff"),
    ),
    "hpack 5.2 Huffman padding of zeros": (
        goaway(COMPRESSION_ERROR),
        headers(1, block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90"),
    ),
    "hpack 5.2 Huffman with the end of strings": (
        goaway(COMPRESSION_ERROR),
        headers(1, block() + b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f"),
    ),
    "hpack 6.1 the index 0": (goaway(COMPRESSION_ERROR), headers(1, b"\x80")),
    "hpack 6.3 a table above the limit": (
        goaway(COMPRESSION_ERROR),
        headers(1, b"\x3f\xe2\x1f" + block()),
    ),
    # We allow a table of 0 bytes, and the client here has acknowledged that (RFC 7541, 4.2).
    "generic 5 a table size update to 1": (
        goaway(COMPRESSION_ERROR),
        headers(1, b"\x21" + block()),
    ),
    "generic 5 table size updates to 0": (None, headers(1, b"\x20\x20" + block())),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    expected, sent = CASES[name]
    peer = Peer()
    assert peer.error(sent) == expected
    if expected is None or expected[0] == "rst":
        answers = peer.send(FRAME(frames.PING, 0, 0, b"still ok"))
        assert [one.payload for one in answers] == [b"still ok"], "the connection goes on"
    else:
        assert peer.machine.failure is not None
        assert not peer.machine.streams
        assert not peer.send(headers(101)), "nothing is read after a connection error"


@pytest.mark.parametrize("name", CASES)
def test_case_byte_by_byte(name):
    expected, sent = CASES[name]
    peer = Peer()
    answers = [frame for place in range(len(sent)) for frame in peer.send(sent[place : place + 1])]
    errors = [one for one in answers if one.kind in {frames.GOAWAY, frames.RST_STREAM}]
    if expected is None:
        assert not errors
    else:
        assert errors[0].kind == {"goaway": frames.GOAWAY, "rst": frames.RST_STREAM}[expected[0]]
        assert errors[0].code == expected[1]


@pytest.mark.parametrize(
    "preface",
    [
        b"INVALID PREFACE\r\n\r\nmore than enough",
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFACE[:-1] + b"?",
    ],
)
def test_3_4_an_invalid_preface_ends_the_connection(preface):
    peer = Peer(begins=False)
    assert peer.error(preface) == goaway(PROTOCOL_ERROR)


def test_3_4_a_preface_without_settings_ends_the_connection():
    peer = Peer(begins=False)
    assert peer.error(frames.PREFACE + FRAME(frames.PING, 0, 0, bytes(8))) == goaway(PROTOCOL_ERROR)


def test_3_4_the_server_sends_settings_first():
    peer = Peer(begins=False)
    peer.machine.begin()
    first = peer.taken()[0]
    assert (first.kind, first.flags, first.stream_id) == (frames.SETTINGS, 0, 0)


def test_5_1_2_more_streams_than_allowed_are_refused():
    peer = Peer(Limits(streams_max=3))
    opened = [headers(one, flags=END_HEADERS) for one in (1, 3, 5)]
    assert peer.error(*opened) is None
    assert peer.error(headers(7)) == rst(frames.REFUSED_STREAM)
    assert sorted(peer.streams) == [1, 3, 5]


def test_6_5_3_settings_are_acknowledged():
    answers = Peer().send(setting(1, 100))
    assert [(one.kind, one.flags, one.payload) for one in answers] == [(frames.SETTINGS, 1, b"")]


def test_6_5_3_the_last_of_equal_settings_holds():
    peer = Peer()
    pair = FRAME(frames.SETTINGS, 0, 0, b"\0\4\0\0\0\x64\0\4\0\0\0\1")
    peer.send(pair, ENDED)
    respond(peer, b"abc")
    assert [len(one.payload) for one in peer.taken() if one.kind == frames.DATA] == [1]


def respond(peer, body, stream_id=1):
    stream = peer.live[stream_id]
    peer.machine.outflow.head(stream, block({":status": "200"}))
    peer.machine.outflow.body(stream, body)
    peer.machine.outflow.finish(stream)


def test_6_9_1_no_more_data_than_the_window_leaves():
    peer = Peer()
    peer.send(setting(4, 1), ENDED)
    respond(peer, b"abc")
    assert [one.payload for one in peer.taken() if one.kind == frames.DATA] == [b"a"]
    answers = peer.send(frames.window_update(1, 2))
    assert [(one.payload, one.flags) for one in answers] == [(b"bc", 0), (b"", END_STREAM)]


def test_6_9_2_a_changed_initial_window_changes_that_of_streams():
    peer = Peer()
    peer.send(setting(4, 0), ENDED)
    respond(peer, b"abc")
    assert not [one for one in peer.taken() if one.kind == frames.DATA]
    answers = peer.send(setting(4, 1))
    assert [one.kind for one in answers] == [frames.SETTINGS, frames.DATA]
    assert answers[1].payload == b"a"


def test_6_9_2_a_negative_window_is_made_up_first():
    peer = Peer()
    peer.send(setting(4, 3), ENDED)
    respond(peer, b"abcdef")
    peer.taken()
    assert [one.kind for one in peer.send(setting(4, 2))] == [frames.SETTINGS]
    assert not peer.send(frames.window_update(1, 1))
    assert [one.payload for one in peer.send(frames.window_update(1, 1))] == [b"d"]


def test_6_9_the_window_of_the_connection_holds_for_all_streams():
    peer = Peer()
    peer.send(ENDED, headers(3))
    respond(peer, bytes(60_000))
    respond(peer, b"x" * 10_000, 3)
    assert sum(len(one.payload) for one in peer.taken() if one.kind == frames.DATA) == 65_535
    answers = peer.send(frames.window_update(0, 10_000))
    assert sum(len(one.payload) for one in answers) == 4_465
    assert not peer.machine.streams


def test_7_5_2_the_table_of_4096_bytes_holds_until_the_acknowledgement():
    peer = Peer(begins=False)
    peer.machine.begin()
    peer.send(frames.PREFACE, frames.settings({}))
    indexed = block() + b"\x40\1a\1b"
    assert peer.error(headers(1, indexed), headers(3, block() + b"\xbe")) is None
    assert peer.streams[3].fields[-1] == (b"a", b"b")
    assert peer.error(frames.frame(frames.SETTINGS, 1, 0), headers(5, b"\x20" + block())) is None
    assert peer.error(headers(7, block() + b"\xbe")) == goaway(COMPRESSION_ERROR)
