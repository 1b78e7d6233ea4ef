"""What security costs: logins by mechanism, decisions of access control.

    python benchmarks/security.py [logins] [decisions] [--logins 300]

Logins: the broker's CPU for each, and how many a second the client got by one after the other.
Decisions: of 100,000 rules of 10,000 principals, new ones and those that a session remembers.
Floods and TLS have benchmarks of their own, `floods.py` and `tls.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from joserfc import jwt
from joserfc.jwk import RSAKey

from headrace.broker.security.acls import AclIndex, Entry, Pattern, PatternType, Permission
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services.access_control import AccessControl
from headrace.kafka.client.exchange import request_frame
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.scram import ScramClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
USER, PASSWORD = "admin", "of the admin"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
ISSUER, AUDIENCE = "https://issuer.example", "headrace"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
RULES, PRINCIPALS = 100_000, 10_000
SASL_HANDSHAKE, SASL_AUTHENTICATE, PRODUCE, FETCH, METADATA, API_VERSIONS = 17, 36, 0, 1, 3, 18


class Served:
    """A broker process that authenticates its clients, or not."""

    def __init__(self, folder: Path, *options: str) -> None:
        data = folder / "data"
        command = [sys.executable, "-m", "headrace.cli.main"]
        adding = [*command, "user", "add", USER, "--password-file", "-", "--data-dir", str(data)]
        subprocess.run(adding, input=f"{PASSWORD}\n", text=True, check=True, capture_output=True)
        command += ["serve", "--json", "--data-dir", str(data), "--log-level", "error"]
        command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        served = json.loads(self.child.stdout.readline())
        host, _, port = served["kafka"].rpartition(":")
        self.served = served
        self.address, self.http = (host, int(port)), served["http"]
        self.process = psutil.Process(self.child.pid)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self.child.kill()
        self.child.wait()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 60)


# --- logins ------------------------------------------------------------------------------------


def text(value: bytes, size: str = ">h") -> bytes:
    return struct.pack(size, len(value)) + value


def ask(connection: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """A response without its size and header."""
    connection.sendall(request_frame(b"bench", api, version, 1, body, is_flexible=False))
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)[4:]


def token_of(connection: socket.socket, message: bytes) -> bytes:
    """The server's answer to one message of a login."""
    found = ask(connection, SASL_AUTHENTICATE, 0, text(message, ">i"))
    (code,) = struct.unpack_from(">h", found)
    assert code == 0, found
    return found[8:]


def log_in(served: Served, mechanism: str, token: str) -> None:
    with served.connect() as connection:
        ask(connection, SASL_HANDSHAKE, 1, text(mechanism.encode()))
        if mechanism == "PLAIN":
            token_of(connection, f"\0{USER}\0{PASSWORD}".encode())
        elif mechanism == "OAUTHBEARER":
            token_of(connection, f"n,,\1auth=Bearer {token}\1\1".encode())
        else:
            client = ScramClient(mechanism, USER, PASSWORD, secrets.token_hex(8))
            client.check(token_of(connection, client.final(token_of(connection, client.first()))))


def logins(folder: Path, options: argparse.Namespace) -> None:
    """See the module."""
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    served = Served(
        folder,
        *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT"),
        *("--sasl-enabled-mechanisms", ",".join(MECHANISMS), "--super-users", f"User:{USER}"),
        *("--sasl-oauthbearer-jwks-endpoint-url", keys.as_uri()),
        *("--sasl-oauthbearer-expected-issuer", ISSUER),
        *("--sasl-oauthbearer-expected-audience", AUDIENCE),
    )
    now_s = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "iat": now_s, "exp": now_s + 3600}
    token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)
    try:
        for mechanism in MECHANISMS:
            log_in(served, mechanism, token)
            cpu_s, begun_s = served.cpu_s(), time.perf_counter()
            for _ in range(options.logins):
                log_in(served, mechanism, token)
            wall_s, cpu_s = time.perf_counter() - begun_s, served.cpu_s() - cpu_s
            print(
                f"logins, {mechanism}: {cpu_s / options.logins * 1e3:.2f} ms of the broker's CPU,"
                f" {options.logins / cpu_s:,.0f}/s of one core, {options.logins / wall_s:,.0f}/s"
                " one after the other"
            )
    finally:
        served.stop()


# --- decisions -----------------------------------------------------------------------------------


def nanoseconds(work: Callable[[], object], count: int) -> float:
    """CPU of this thread for one call."""
    begun_ns = time.thread_time_ns()
    for _ in range(count):
        work()
    return (time.thread_time_ns() - begun_ns) / count


def decisions(_folder: Path, _options: argparse.Namespace) -> None:
    """See the module."""
    access = AccessControl(MemoryMetadataStore())
    index: AclIndex = access._index  # noqa: SLF001 - rules without a store's time
    per = RULES // PRINCIPALS
    for number in range(PRINCIPALS):
        entry = Entry(f"User:u{number}", "*", Operation.READ, Permission.ALLOW)
        for topic in range(per):
            kind = PatternType.PREFIXED if topic % per == 0 else PatternType.LITERAL
            index.put(Pattern(ResourceType.TOPIC, f"t{number}-{topic}", kind), [entry])
    rng = random.Random(1)
    sessions = [
        (ClientSession("L", "10.0.0.1", Principal(f"u{number}", mechanism="PLAIN")), number)
        for number in rng.sample(range(PRINCIPALS), 1_000)
    ]

    def decide_all() -> None:
        for session, number in sessions:
            assert access.allows(session, Operation.READ, ResourceType.TOPIC, f"t{number}-3")

    new = nanoseconds(decide_all, 1) / len(sessions)
    remembered = nanoseconds(decide_all, 50) / len(sessions)
    print(
        f"decisions, {RULES:,} rules: {new / 1e3:.2f} us new, {remembered / 1e3:.2f} us remembered"
    )


def batch(value: bytes) -> bytes:
    from headrace.records.codec import Record, encode_batch

    return encode_batch([Record(0, 1, None, value, [])])


PARTS = {"logins": logins, "decisions": decisions}


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """One that is removed."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[*PARTS])
    parser.add_argument("--logins", type=int, default=300)
    options: Any = parser.parse_args()
    for name in options.parts or PARTS:
        with own_folder() as folder:
            PARTS[name](folder, options)


if __name__ == "__main__":
    main()
