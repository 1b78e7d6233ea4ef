"""What a noisy tenant costs a quiet one: latencies of produce, alone and beside it, in alternation.

    python -m benchmarks.tenants [--turns 5] [--seconds 10] [--noisy 1] [--unlimited]

The noisy tenant offers three times its rate on 200 connections, from a process of its own, and
ignores throttle times: it has IN_FLIGHT requests on the way on each connection. The quiet one
sends a record of 1 KiB a hundred times a second; each has been synced when it is acknowledged.
With --unlimited no tenant has a limit, and the noisy one sends as much as it can. With --noisy 2
two tenants are noisy at once, from a process each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.security import (
    METADATA,
    PASSWORD,
    PRODUCE,
    SASL_HANDSHAKE,
    Served,
    ask,
    batch,
    text,
    token_of,
)
from headrace.kafka.client.exchange import request_frame

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Event

NOISY, QUIET = "noisy", "quiet"
CONNECTIONS, RATE_BYTES, EXCESS, IN_FLIGHT = 200, 1 << 20, 3, 5
NOISY_BYTES, QUIET_BYTES = 10 << 10, 1 << 10
EACH_S = 0.01
WARM_UP_S = 5.0
UNLIMITED_BYTES = 1 << 30
"""A second: all connections have IN_FLIGHT requests on the way all the time."""


def served(folder: Path, noisy: Sequence[str], *, has_limit: bool) -> Served:
    """A broker with all tenants, of which the noisy ones may have a limit."""
    add = [sys.executable, "-m", "headrace.cli.main", "user", "add"]
    for name in (*noisy, QUIET):
        options = ["--password-file", "-", "--data-dir", str(folder / "data")]
        subprocess.run([*add, name, *options], input=f"{PASSWORD}\n", text=True, check=True)
    made = Served(
        folder,
        *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT"),
        *("--sasl-enabled-mechanisms", "PLAIN", "--authorizer", "acl"),
        *("--super-users", "User:admin;User:ANONYMOUS"),
    )
    for name in (*noisy, QUIET):
        change(made, "POST", "/v1/tenants", {"name": name, "principals": [f"User:{name}"]})
    for name in noisy if has_limit else ():
        limits = {"limits": {"producer_byte_rate": RATE_BYTES}}
        change(made, "PATCH", f"/v1/tenants/{name}", limits)
    return made


def change(made: Served, method: str, path: str, body: Any) -> None:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{made.http}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200, answer.status


def log_in(address: tuple[str, int], name: str) -> socket.socket:
    connection = socket.create_connection(address, 60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask(connection, SASL_HANDSHAKE, 1, text(b"PLAIN"))
    token_of(connection, f"\0{name}\0{PASSWORD}".encode())
    return connection


def frame(size: int) -> bytes:
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + text(b"t") + struct.pack(">ii", 1, 0)
    body += text(batch(bytes(size)), ">i")
    return request_frame(b"bench", PRODUCE, 7, 1, body, is_flexible=False)


def create(connection: socket.socket) -> None:
    """The topic of the client's tenant."""
    asked = struct.pack(">i", 1) + text(b"t") + b"\1"
    for _ in range(100):
        found = ask(connection, METADATA, 4, asked)
        connection.sendall(frame(QUIET_BYTES))
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        found = connection.recv(size, socket.MSG_WAITALL)
        if found[4 + 4 + 3 + 4 + 4 :][:2] == b"\0\0":
            return
        time.sleep(0.1)
    raise TimeoutError("the topic was not created")


def be_noisy(
    address: tuple[str, int], name: str, rate_bytes: float, is_ready: Event, is_over: Event
) -> None:
    """Send so many bytes a second, over all connections in turn, as far as they take them."""
    opened = [log_in(address, name) for _ in range(CONNECTIONS)]
    selector, data = selectors.DefaultSelector(), frame(NOISY_BYTES)
    asked, unread = dict.fromkeys(opened, 0), dict.fromkeys(opened, b"")
    for one in opened:
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
    is_ready.set()
    begun_s, sent, at = time.monotonic(), 0, 0
    while not is_over.is_set():
        offered = (time.monotonic() - begun_s) * rate_bytes
        due = int(offered - sent) // len(data)
        sent += due * len(data)
        for _ in range(min(due, CONNECTIONS * IN_FLIGHT)):
            at = (at + 1) % CONNECTIONS
            one = opened[at]
            if asked[one] < IN_FLIGHT:
                one.setblocking(True)
                one.sendall(data)
                one.setblocking(False)
                asked[one] += 1
        for key, _ in selector.select(0.005):
            found: Any = key.fileobj
            unread[found] += found.recv(1 << 16)
            while len(unread[found]) >= 4:
                end = 4 + struct.unpack_from(">i", unread[found])[0]
                if len(unread[found]) < end:
                    break
                unread[found], asked[found] = unread[found][end:], asked[found] - 1


def latencies_ms(connection: socket.socket, seconds: float) -> list[float]:
    """Of requests that begin at their times; one that is late for another's sake counts from its
    time on."""
    data, found = frame(QUIET_BYTES), []
    due_s = time.monotonic()
    end_s = due_s + seconds
    while due_s < end_s:
        time.sleep(max(0.0, due_s - time.monotonic()))
        begun_s = time.monotonic() if not found or found[-1] < EACH_S * 1e3 else due_s
        connection.sendall(data)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(size, socket.MSG_WAITALL)
        found.append((time.monotonic() - begun_s) * 1e3)
        due_s += EACH_S
    return found


def turn(
    made: Served, quiet: socket.socket, seconds: float, rate_bytes: float, noisy: Sequence[str]
) -> list[float]:
    is_over = multiprocessing.Event()
    begun = []
    for name in noisy:
        is_ready = multiprocessing.Event()
        given = made.address, name, rate_bytes, is_ready, is_over
        begun.append((multiprocessing.Process(target=be_noisy, args=given), is_ready))
    for process, _ in begun:
        process.start()
    for _, is_ready in begun:
        is_ready.wait(60)
    if noisy:
        time.sleep(WARM_UP_S)
    try:
        return latencies_ms(quiet, seconds)
    finally:
        is_over.set()
        for process, _ in begun:
            process.join(10)
            process.kill()


def percentile(found: Sequence[float], part: float) -> float:
    return sorted(found)[int(len(found) * part)]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--noisy", type=int, default=1)
    parser.add_argument("--unlimited", action="store_true")
    options = parser.parse_args()
    offered = UNLIMITED_BYTES if options.unlimited else RATE_BYTES * EXCESS
    noisy = [f"{NOISY}{number or ''}" for number in range(options.noisy)]
    with tempfile.TemporaryDirectory() as name:
        made = served(Path(name), noisy, has_limit=not options.unlimited)
        try:
            for tenant in (*noisy, QUIET):
                connection = log_in(made.address, tenant)
                create(connection)
            p50: dict[bool, list[float]] = {False: [], True: []}
            p99: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.turns):
                for is_noisy in (False, True):
                    cpu_s = made.cpu_s()
                    beside = noisy if is_noisy else ()
                    found = turn(made, connection, options.seconds, offered, beside)
                    p50[is_noisy].append(percentile(found, 0.5))
                    p99[is_noisy].append(percentile(found, 0.99))
                    print(
                        f"{'noisy' if is_noisy else 'alone'}: p50 {p50[is_noisy][-1]:.2f} ms, p99"
                        f" {p99[is_noisy][-1]:.2f} ms, {made.cpu_s() - cpu_s:.1f} s of CPU",
                        flush=True,
                    )
            for which, of in (("p50", p50), ("p99", p99)):
                alone, loud = statistics.median(of[False]), statistics.median(of[True])
                print(f"{which}: {alone:.2f} ms alone, {loud:.2f} ms beside the noisy,"
                      f" {loud / alone:.2f} times")  # fmt: skip
        finally:
            made.stop()


if __name__ == "__main__":
    main()
