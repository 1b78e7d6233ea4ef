"""Targeted abuse of HTTP: cross-origin requests, foreign Host headers, response splitting.

Invariants: as in `names`; sizes and slow clients are in `wire.web`.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.kafka_wire import METADATA, request_bytes

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

PATHS = ("/healthz", "/readyz", "/metrics", "/openapi.json")
RESETS = 1_000
ANSWER_S = 30
"""For a machine with other load, too."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_REVEALING = re.compile(
    rb"uvicorn|starlette|python/|\bpython\b|h11|CPython|site-packages|Traceback|\.py\b",
    re.IGNORECASE,
)


class Answer(NamedTuple):
    """What was received on one connection."""

    status: int
    head: bytes
    body: bytes
    lines: int
    """The number of status lines received."""


def get(
    abuse: Abuse, target: str | bytes, headers: bytes = b"", *, method: bytes = b"GET",
    host: bytes | None = None,
) -> Answer:  # fmt: skip
    """Send one request; status 0 if the connection is closed without a response."""
    where = host if host is not None else b"%s:%d" % (abuse.http[0].encode(), abuse.http[1])
    path = target.encode() if isinstance(target, str) else target
    first = method + b" " + path + b" HTTP/1.1\r\nHost: " + where + b"\r\n"
    with abuse.open(is_http=True) as peer:
        peer.send(first + headers + b"Connection: close\r\n\r\n")
        data = peer.receive(8 << 20, ANSWER_S)
    abuse.checked += 1
    head, _, body = data.partition(b"\r\n\r\n")
    found = STATUS.match(head)
    return Answer(int(found[1]) if found else 0, head, body, len(STATUS.findall(data)))


def other_hosts_names_are_not_answered(abuse: Abuse) -> None:
    for host in (
        b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example", b"evil.example:80",
        b"a" * 300, b"[::1]evil", b"localhost:port", b"127.0.0.1, evil.example",
    ):  # fmt: skip
        for path in PATHS:
            answer = get(abuse, path, host=host)
            is_refused = answer.status == 0 or 400 <= answer.status < 500
            abuse.expect(is_refused, f"{path} for host {host[:40]!r}: status {answer.status}")
            abuse.expect(b"headrace_" not in answer.body, f"host {host[:40]!r} gets the metrics")
    for host in (b"localhost", b"127.0.0.1", b"[::1]", b"LOCALHOST:1"):
        answer = get(abuse, "/healthz", host=host)
        abuse.expect(answer.status == 200, f"host {host!r}: status {answer.status}")


def strangers_pages_get_no_leave_to_read(abuse: Abuse) -> None:
    for origin in (b"https://evil.example", b"null", b"http://localhost.evil.example"):
        for path in PATHS:
            answer = get(abuse, path, b"Origin: " + origin + b"\r\n")
            leak = b"access-control-" in answer.head.lower()
            abuse.expect(not leak, f"{path} tells {origin!r} that it may read")
        asked = b"Origin: " + origin + b"\r\nAccess-Control-Request-Method: POST\r\n"
        answer = get(abuse, "/metrics", asked, method=b"OPTIONS")
        leak = b"access-control-" in answer.head.lower()
        abuse.expect(not leak and answer.status >= 400, f"a preflight: {answer.status}")
    for path in PATHS:
        answer = get(abuse, path)
        is_typed = b"x-content-type-options: nosniff" in answer.head.lower()
        abuse.expect(is_typed, f"{path} may be taken for a page")
        abuse.expect(b"set-cookie" not in answer.head.lower(), f"{path} sets a cookie")


def answers_are_not_split_and_say_nothing_back(abuse: Abuse) -> None:
    mark = b"zq81"
    for tail in (
        b"%0d%0aX-Split:%20" + mark, b"\r\nX-Split: " + mark, b"%0aSet-Cookie:" + mark,
        b"%E5%98%8A%E5%98%8DX:" + mark, b"<script>" + mark, b"%3Cscript%3E" + mark,
    ):  # fmt: skip
        for start in (b"/healthz?x=", b"/healthz/", b"/", b"//", b"/metrics?name[]="):
            answer = get(abuse, start + tail, b"X-Ask: " + tail.replace(b"\r\n", b" ") + b"\r\n")
            abuse.expect(answer.lines <= 1, f"{start + tail!r}: {answer.lines} answers")
            leak = mark in answer.head or mark in answer.body
            abuse.expect(not leak, f"{start + tail!r} is said back: {answer.body[:80]!r}")
            split = b"\nx-split" in answer.head.lower() or b"set-cookie" in answer.head.lower()
            abuse.expect(not split, f"{start + tail!r} makes a header")


def odd_query_options_are_no_fault(abuse: Abuse) -> None:
    for path in PATHS:
        for query in (
            "limit=-1", "limit=99999999999999999999", "timeout=nan", "name[]=", "%00", "%ff%fe",
            "&&&", "=" * 2000, "a=1&" * 5000, "format=../../etc/passwd", "debug=1", "verbose",
            "${jndi:x}",
        ):  # fmt: skip
            answer = get(abuse, f"{path}?{query}")
            is_right = answer.status == 200 or 400 <= answer.status < 500 or not answer.status
            if path == "/readyz":
                is_right = is_right or answer.status == 503
            abuse.expect(is_right, f"{path}?{query[:30]}: status {answer.status}")


def errors_tell_nothing_of_the_inside(abuse: Abuse) -> None:
    for method, target in (
        (b"GET", b"/nowhere"), (b"POST", b"/metrics"), (b"TRACE", b"/healthz"), (b"GET", b"*"),
        (b"GET", b"/%"), (b"G\x01T", b"/"), (b"GET", b"/x HTTP/9.9\r\nX:"),
        (b"GET", b"/" + b"a" * 70_000),
    ):  # fmt: skip
        answer = get(abuse, target, method=method)
        leak = _REVEALING.search(answer.head + answer.body)
        abuse.expect(leak is None, f"{method!r} {target[:20]!r} tells {leak and leak[0]!r}")
        abuse.expect(answer.status < 500 or answer.status == 501, f"{target[:20]!r}: a fault")
        has_name = b"\r\nserver:" in answer.head.lower()
        abuse.expect(not has_name, f"{method!r} {target[:20]!r} tells the server's name")
        is_short = answer.status < 400 or len(answer.body) < 1000
        abuse.expect(is_short, f"{target[:20]!r}: {len(answer.body)} bytes of error")


def connections_reset_at_once_cost_nothing(abuse: Abuse) -> None:
    linger = struct.pack("ii", 1, 0)
    asked = request_bytes(METADATA, 1, 1, topics=None)
    page = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for number in range(RESETS):
        is_http = bool(number % 2)
        peer = abuse.open(is_http=is_http)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        peer.send(page if is_http else asked * 3)
        peer.close()
        if number % 100 == 99:
            abuse.close()
    abuse.checked += RESETS
    status = get(abuse, "/healthz").status
    abuse.expect(status == 200, f"after {RESETS} resets a health check gets {status}")
