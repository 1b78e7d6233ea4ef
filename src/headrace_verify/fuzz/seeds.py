"""What each fuzz target begins with: what real clients have sent, cut into what it parses.

Invariants: the same seeds in every run. `record` writes the file.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from headrace.grpc.frames import PREFACE
from headrace.kafka.apis import APIS, OWN_APIS, PRODUCE
from headrace.kafka.wire.primitives import FrameInvalid
from headrace.kafka.wire.produce import read_produce
from headrace.kafka.wire.schema import read_request
from headrace.records.batch import HEADER_SIZE

TRAFFIC: Final = Path(__file__).with_name("traffic.jsonl")
JOIN_GROUP, SYNC_GROUP, SASL_AUTHENTICATE = 11, 14, 36
_WRITTEN: Final = {
    "answers": [b"\0\x05\0\0\0\0\0\0\0\0"],
    "answers_to_logins": [b"r=nonceX,s=AAAA,i=4096", b"v=AAAA", b"r=nonceX,s=AAAA,i=8192"],
    "credentials": [
        b"dXNlcjpwYXNz", b"Bearer abc.def.ghi", b"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.e30.AAAA",
        b'{"keys":[{"kty":"RSA","kid":"1","n":"AQAB","e":"AQAB"}]}',
    ],
    "expressions": [
        b"value.n > 1 && headers['a'] in ['x', b'y'] ? size(key) == 2 : false",
        b"a IS NOT NULL AND (b > 1.5 OR c LIKE 'x%' ESCAPE '!') AND d BETWEEN 1 AND 2", b"a || b",
    ],
    "header_blocks": [bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")],
    "metrics": [
        b"\x0a\x1e\x12\x1c\x0a\0\x12\x18\x12\x01m:\x13\x0a\x11I" + bytes(8) + b"\x11" + bytes(8),
    ],
    "grpc_messages": [b"1000m", b"\x0a\x08\x12\x06orders"],
    "zookeeper": [b"\0\0\0\1\0\0\0\3\0\0\0\1a", b"\0\0\0\0\0\0\x13\x88" + bytes(28)],
    "bookkeeper": [bytes.fromhex("02010000") + bytes(44)],
    "values": [bytes.fromhex("0202020602610000000000000000000000000000"), b"\0a"],
}  # fmt: skip


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    found: dict[str, list[bytes]] = defaultdict(list, {k: [*v] for k, v in _WRITTEN.items()})
    for line in TRAFFIC.read_text().splitlines():
        row = json.loads(line)
        data = bytes.fromhex(row["sent"])
        if row["listener"] == "kafka":
            found["requests"].append(data)
            _add_frames(found, data)
        elif row["listener"] == "http":
            found["http"].append(data)
            found["bodies"].append(data.partition(b"\r\n\r\n")[2])
        else:
            found["http2"].append(data.removeprefix(PREFACE))
    return {name: list(dict.fromkeys(given)) for name, given in found.items()}


def _add_frames(found: dict[str, list[bytes]], data: bytes) -> None:
    at, tokens = 0, []
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, at)
        frame, at = data[at : at + 4 + size], at + 4 + size
        if len(frame) < 4 + size:
            break
        found["requests"].append(frame)
        key, request = _read(frame[4:])
        if key == PRODUCE and request is not None:
            for one in request.partitions:
                batch = bytes(one.records)
                found["batches"].append(batch)
                found["streams"].append(bytes([batch[22] & 7]) + batch[HEADER_SIZE:])
        elif key == JOIN_GROUP and request is not None:
            found["groups"] += [bytes(one.metadata) for one in request.protocols]
        elif key == SYNC_GROUP and request is not None:
            found["groups"] += [bytes(one.assignment) for one in request.assignments]
        elif key == SASL_AUTHENTICATE and request is not None:
            tokens.append(bytes(request.auth_bytes))
    if tokens:
        found["logins"] += [*tokens, b"\n".join(tokens)]


def _read(frame: bytes) -> tuple[int, Any]:
    """(API, request, or None if it is no whole one)."""
    key, version, _id, client_size = struct.unpack_from(">hhih", frame)
    api = {**APIS, **OWN_APIS}[key]
    at = 10 + max(client_size, 0) + (version >= api.flexible_from)
    try:
        if key == PRODUCE:
            return key, read_produce(memoryview(frame), at, version)
        return key, None if key == 1 else read_request(key, version, frame, at)
    except FrameInvalid:
        return key, None
