"""Hand-written DescribeConfigs and IncrementalAlterConfigs requests for brokers and groups.

Invariants: the client library has no resource for all brokers (an empty name), so both requests are
encoded here, in versions that every Kafka since 2.3 supports. Do not change: on the wire.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.failures import FAILED, NOT_FOUND, UNREACHABLE, CommandFailed
from headrace.cli.raw_request import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.session import CliSession

BROKER, GROUP = 4, 32
SET, DELETE = 0, 1
_DESCRIBE, _DESCRIBE_VERSION = 32, 3
_ALTER, _ALTER_VERSION = 44, 0
_SOURCES = {2: "this broker", 3: "all brokers", 4: "start", 5: "default", 8: "group"}


class Resource(NamedTuple):
    """What settings belong to."""

    kind: int
    """BROKER or GROUP."""
    name: str


ALL_BROKERS = Resource(BROKER, "")


class Shown(NamedTuple):
    """One setting, as a broker returns it."""

    name: str
    value: str | None
    source: str
    is_live: bool
    is_sensitive: bool
    documentation: str | None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> int:
        value: int
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return value

    def text(self) -> str | None:
        size = self.take(">h")
        if size < 0:
            return None
        found = self._data[self._at : self._at + size]
        self._at += size
        return found.decode()


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    if len(data) > 0x7FFF:
        raise CommandFailed("a name or value of more than 32,767 bytes; nothing was changed")
    return struct.pack(">h", len(data)) + data


def broker_addresses(session: CliSession) -> dict[int, str]:
    """The addresses of the live brokers, in the order of their ids."""
    session.check_reachable()
    brokers = session.cluster_metadata().brokers
    return {number: f"{brokers[number].host}:{brokers[number].port}" for number in sorted(brokers)}


def address_of(session: CliSession, resource: Resource) -> str:
    """The broker to query: the one whose settings these are, else any. Raises CommandFailed."""
    addresses = broker_addresses(session)
    if resource.kind == GROUP or resource == ALL_BROKERS:
        return next(iter(addresses.values()))
    if int(resource.name) not in addresses:
        known = ", ".join(map(str, addresses))
        raise CommandFailed(
            f"no live broker has id {resource.name}; nothing was changed",
            f"The live brokers are {known}",
            NOT_FOUND,
        )
    return addresses[int(resource.name)]


def describe(session: CliSession, resource: Resource) -> list[Shown]:
    """The settings of a broker or group, or those set for all brokers. Raises CommandFailed."""
    body = struct.pack(">ib", 1, resource.kind) + _text(resource.name)
    body += struct.pack(">i??", -1, False, True)
    reader = _ask(session, resource, _DESCRIBE, _DESCRIBE_VERSION, body)
    shown: list[Shown] = []
    for _ in range(reader.take(">i")):
        name, value = reader.text() or "", reader.text()
        is_read_only, source = bool(reader.take(">b")), reader.take(">b")
        is_sensitive = bool(reader.take(">b"))
        for _ in range(reader.take(">i")):
            reader.text(), reader.text(), reader.take(">b")
        reader.take(">b")
        documentation = reader.text()
        source_name = _SOURCES.get(source, str(source))
        shown.append(Shown(name, value, source_name, not is_read_only, is_sensitive, documentation))
    return sorted(shown)


def alter(
    session: CliSession,
    resource: Resource,
    changes: Sequence[tuple[str, int, str | None]],
    *,
    is_dry_run: bool,
) -> None:
    """Change settings of a broker, a group or all brokers atomically. Raises CommandFailed."""
    body = struct.pack(">ib", 1, resource.kind) + _text(resource.name)
    body += struct.pack(">i", len(changes))
    for name, operation, value in changes:
        body += _text(name) + struct.pack(">b", operation) + _text(value)
    body += struct.pack(">?", is_dry_run)
    # Any broker accepts a change for any other, which may be down at the moment.
    _ask(session, ALL_BROKERS, _ALTER, _ALTER_VERSION, body)


def _ask(
    session: CliSession, resource: Resource, api_key: int, version: int, body: bytes
) -> _Reader:
    """Return the response after its only resource's error. Raises CommandFailed."""
    address = address_of(session, resource)
    try:
        answer = ask(session, address, (api_key, version), body, is_flexible=False)
        reader = _Reader(answer)
        reader.take(">i"), reader.take(">i")  # throttle time, one result
        error, message = reader.take(">h"), reader.text()
        reader.take(">b"), reader.text()
    except (OSError, struct.error, UnicodeDecodeError) as failure:
        raise CommandFailed(
            f"{address} sent no readable response ({failure})",
            "Is the broker running? See `headrace info`",
            UNREACHABLE,
        ) from None
    if error:
        raise CommandFailed((message or f"error {error}").rstrip("."), "", FAILED)
    return reader
