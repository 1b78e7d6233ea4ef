"""Abuse of the HTTP port: headers, bodies, methods, paths, smuggling, slow clients.

Invariants: as in `frames`. Invalid requests must not get status 200 or 5xx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.wire.abuse import Case

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

HOST = b"Host: localhost\r\n"
SLOW_COUNT = 300
MIB = 1 << 20


def _status(abuse: Abuse, request: bytes, timeout_s: float = 3) -> int | None:
    """The response's status; None if the connection is closed, or times out, without one."""
    with abuse.open(is_http=True) as peer:
        peer.send(request)
        peer.end_sending()
        line = peer.receive(12, timeout_s)
        peer.is_closed(0.5)
    abuse.checked += 1
    return int(line[9:12]) if line.startswith(b"HTTP/1.") and line[9:12].isdigit() else None


def _refused(abuse: Abuse, request: bytes, what: str) -> None:
    status = _status(abuse, request)
    is_refused = status is None or 400 <= status < 500 or status == 501
    abuse.expect(is_refused, f"{what}: status {status}")


def huge_headers_are_refused(abuse: Abuse) -> None:
    start = b"GET /healthz HTTP/1.1\r\n" + HOST
    _refused(abuse, start + b"X: " + b"x" * MIB + b"\r\n\r\n", "a header of 1 MiB")
    _refused(abuse, start + b"X: y\r\n" * 200_000 + b"\r\n", "200,000 headers")
    _refused(abuse, b"GET /" + b"x" * MIB + b" HTTP/1.1\r\n" + HOST + b"\r\n", "a path of 1 MiB")
    _refused(abuse, b"G" * MIB, "a method of 1 MiB")


def huge_bodies_take_no_memory(abuse: Abuse) -> None:
    for sized in (b"Content-Length: 1099511627776\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        with abuse.open(is_http=True) as peer:
            peer.send(b"POST /healthz HTTP/1.1\r\n" + HOST + sized)
            chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
            peer.send(chunk * 80, 2)
        abuse.checked += 1


def odd_methods_are_refused(abuse: Abuse) -> None:
    for method in (b"POST", b"PUT", b"DELETE", b"BREW", b"TRACE", b"CONNECT", b"get", b"G\x00T"):
        request = method + b" /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        _refused(abuse, request, f"method {method!r}")


def paths_do_not_lead_out(abuse: Abuse) -> None:
    for path in (
        b"/../../etc/passwd",
        b"/%2e%2e/%2e%2e/etc/passwd",
        b"/..%2f..%2fetc/passwd",
        b"//etc/passwd",
        b"/healthz/../../etc/passwd",
        b"/\x00",
        b"/%00",
        b"/metrics%0d%0aX: y",
        b"/%ff%fe",
        b"*",
        b"http://169.254.169.254/latest",
        b"/${jndi:ldap://x}",
        b"/.git/config",
    ):
        _refused(
            abuse,
            b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
            f"path {path!r}",
        )


def requests_are_not_smuggled(abuse: Abuse) -> None:
    hidden = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
    start = b"POST /healthz HTTP/1.1\r\n" + HOST
    for what, head in (
        ("two lengths", b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n"),
        ("a list of lengths", b"Content-Length: 0, 5\r\n\r\n"),
        ("a negative length", b"Content-Length: -1\r\n\r\n"),
        ("a length with a sign", b"Content-Length: +0\r\n\r\n"),
        ("a space before the colon", b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        ("an unknown coding", b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("chunked twice", b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        ("a chunk of a negative size", b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"),
        ("a chunk of 2^64", b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n"),
        ("a NUL in a header", b"X: a\x00b\r\n\r\n"),
    ):
        _refused(abuse, start + head + hidden, what)
        before = len(abuse.received)
        with abuse.open(is_http=True) as peer:
            peer.send(start + head + hidden)
            peer.is_closed(0.5)  # without an end of input, which would cut off a second answer
        answered = bytes(abuse.received[before:])
        is_one = answered.count(b"HTTP/1.1 ") <= 1
        abuse.expect(is_one, f"{what}: the second request is answered")


def clients_that_dribble_do_not_shut_others_out(abuse: Abuse) -> None:
    for number in range(SLOW_COUNT):
        peer = abuse.open(is_http=True)
        if number % 2:
            peer.send(b"GET /healthz HTTP/1.1\r\nX: ")
    for _ in range(3):
        abuse.pause(0.2)
        status = _status(abuse, b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        abuse.expect(status == 200, f"beside {SLOW_COUNT} slow clients: status {status}")


def pipelined_requests_unread_take_bounded_memory(abuse: Abuse) -> None:
    with abuse.open(is_http=True) as peer:
        peer.send((b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n") * 5000, 1)
        abuse.pause(0.5)
    abuse.checked += 1


def kafka_and_noise_on_the_http_port_harm_nobody(abuse: Abuse) -> None:
    rng = abuse.rng
    noise = [rng.randbytes(rng.randrange(1, 2000)) for _ in range(100)]
    noise += [b"\x00\x00\x00\x10\x00\x12\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"]
    noise += [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(5000), b"\x16\x03\x01\x02\x00" * 500]
    abuse.each(noise, is_http=True)


CASES = (
    Case("http", huge_headers_are_refused),
    Case("http", huge_bodies_take_no_memory),
    Case("http", odd_methods_are_refused),
    Case("http", paths_do_not_lead_out),
    Case("http", requests_are_not_smuggled),
    Case("http", clients_that_dribble_do_not_shut_others_out),
    Case("http", pipelined_requests_unread_take_bounded_memory),
    Case("http", kafka_and_noise_on_the_http_port_harm_nobody, 1),
)
