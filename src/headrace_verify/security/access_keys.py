"""RocketMQ's clients on a broker that authenticates them: signatures that must not be taken.

Invariants: as in `logins`. The calls are frames of HTTP/2 of our own, since official clients sign
properly.
"""

from __future__ import annotations

import hmac
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.rocketmq import codes, wire
from headrace.runtime.clock import SystemClock
from headrace_verify.security.secured import ADMIN, MALLORY, Secured, basic
from headrace_verify.wire.abuse import Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_verify.wire.abuse import Abuse

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_DATA, _HEADERS = 0, 1
_END_STREAM, _END_HEADERS = 1, 4
_TOPIC: Final = "signed"
_FORMAT: Final = "%Y%m%dT%H%M%SZ"


class Signature(NamedTuple):
    """What a client signs with, and when."""

    key: str
    secret: str
    ago: timedelta = timedelta()

    @property
    def headers(self) -> dict[str, str]:
        """Of a call."""
        date_time = (
            datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC) - self.ago
        ).strftime(_FORMAT)
        signature = hmac.digest(self.secret.encode(), date_time.encode(), "sha1").hex()
        signed = f"Credential={self.key}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return {"authorization": f"MQv2-HMAC-SHA1 {signed}", "x-mq-date-time": date_time}


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + b"\0\0\0\1" + payload


def _field(name: str, value: str) -> bytes:
    """A literal without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + b"".join(_length(len(one)) + one.encode() for one in (name, value))


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    size -= 127
    return b"\x7f" + (bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7)))


def route_status(
    secured: Secured, abuse: Abuse, headers: Mapping[str, str], topic: str | bytes = _TOPIC
) -> Any:
    """The status of the answer to a QueryRoute; None: there is no answer. Bytes need not be
    UTF-8."""
    raw = topic.encode() if isinstance(topic, str) else topic
    placeholder = "x" * len(raw)
    body = wire.request_of("QueryRoute")(topic={"name": placeholder}).SerializeToString()
    body = body.replace(placeholder.encode(), raw)
    return status_of(secured, abuse, headers, "QueryRoute", body)


def status_of(
    secured: Secured,
    abuse: Abuse,
    headers: Mapping[str, str],
    rpc: str,
    body: bytes,
    source: str = "",
) -> Any:
    """The status of the answer to a call; None: there is no answer. `source`: the address from
    which it comes."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"/{wire.SERVICE}/{rpc}",
        ":authority": "broker:1", "te": "trailers", "content-type": "application/grpc",
        "x-mq-client-id": "abuse", **{name.lower(): value for name, value in headers.items()},
    }  # fmt: skip
    block = b"".join(_field(*pair) for pair in fields.items())
    message = b"\0" + struct.pack(">I", len(body)) + body
    call = _frame(_HEADERS, _END_HEADERS, block) + _frame(_DATA, _END_STREAM, message)
    abuse.checked += 1
    with Peer(abuse, secured.broker.rocketmq_addresses[0], source) as peer:
        peer.send(_PREFACE + call)
        data = b""
        while b"grpc-status" not in data:
            more = peer.receive(1, 10)
            if not more:
                return None
            data += more
    return _status_in(data, rpc)


def _status_in(data: bytes, rpc: str) -> Any:
    at = 0
    while at + 9 <= len(data):
        size, kind = int.from_bytes(data[at : at + 3]), data[at + 3]
        if kind == _DATA:
            return wire.response_of(rpc).FromString(data[at + 14 : at + 9 + size]).status
        at += 9 + size
    return None


def _make(secured: Secured, name: str, **more: str) -> Any:
    body = {"name": name, **more}
    return secured.ask("POST", "/v1/keys", basic(ADMIN), body).json()


def signatures_of_others_and_of_other_times_are_refused(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    secured.make(_TOPIC)
    key = _make(secured, "signing", kind="rocketmq")
    web = _make(secured, "of the web")
    mine = _make(secured, "mallory", kind="rocketmq", user=MALLORY)
    right = Signature(key["id"], key["secret"])
    taken = route_status(secured, abuse, right.headers)
    abuse.expect(taken is not None and taken.code == codes.OK, f"a right one is refused: {taken}")
    hour, year = timedelta(hours=1, minutes=7), timedelta(days=365)
    old = right._replace(ago=timedelta(minutes=7)).headers
    wrong: dict[str, Mapping[str, str]] = {
        "none": {},
        "one of seven minutes ago": old,
        "one of an hour ago": right._replace(ago=hour).headers,
        "one of a year ago": right._replace(ago=year).headers,
        "one of the hour to come": right._replace(ago=-hour).headers,
        "an old one with a new time": old | {"x-mq-date-time": right.headers["x-mq-date-time"]},
        "one of another secret": right._replace(secret=mine["secret"]).headers,
        "one of no secret": right._replace(secret="").headers,
        "one of a key that does not exist": right._replace(key="0" * 16).headers,
        "one by a key for HTTP": Signature(web["id"], web["key"]).headers,
        "one by the hash of nothing": Signature(web["id"], "").headers,
        "a password": {**basic(ADMIN), "x-mq-date-time": right.headers["x-mq-date-time"]},
    }
    texts = set()
    for name, headers in wrong.items():
        for topic in (_TOPIC, "no-such-topic"):
            status = route_status(secured, abuse, headers, topic)
            is_refused = status is not None and status.code == codes.UNAUTHORIZED
            abuse.expect(is_refused, f"a signature is taken, {name}: {status}")
            texts.add("" if status is None else status.message)
    abuse.expect(len(texts) == 1, f"refusals tell what was wrong: {texts}")
    _denied(secured, abuse, Signature(mine["id"], mine["secret"]))
    secured.ask("DELETE", f"/v1/keys/{key['id']}", basic(ADMIN))
    status = route_status(secured, abuse, right.headers)
    is_refused = status is not None and status.code == codes.UNAUTHORIZED
    abuse.expect(is_refused, f"a revoked key is taken: {status}")
    for made in (web, mine):
        secured.ask("DELETE", f"/v1/keys/{made['id']}", basic(ADMIN))


def _denied(secured: Secured, abuse: Abuse, weak: Signature) -> None:
    """A user without rights learns nothing of what exists."""
    found = set()
    for topic in (_TOPIC, "absent"):
        status = route_status(secured, abuse, weak.headers, topic)
        code = None if status is None else status.code
        abuse.expect(code == codes.FORBIDDEN, f"a user without rights gets {status}")
        found.add("" if status is None else status.message.replace(topic, ""))
    abuse.expect(len(found) == 1, f"refusals tell what exists: {found}")
