"""What the servers of a ZooKeeper ensemble say about themselves, and whether they can be trusted.

Invariants: needs no session. A server is asked with the four-letter word `srvr`, which servers
answer unless their `4lw.commands.whitelist` leaves it out. One that does not answer is left out.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.zookeeper.link import parse_hosts

if TYPE_CHECKING:
    import ssl

ASK_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 64 * 1024
_LOSING: Final = frozenset({(3, 9, 3)})
_VERSION: Final = re.compile(r"^Zookeeper version: (\d{1,6})\.(\d{1,6})\.(\d{1,6})\b", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\w+)", re.MULTILINE)


class ZooKeeperServer(NamedTuple):
    """A server's answer."""

    address: str
    version: tuple[int, int, int]
    mode: str
    """`leader`, `follower`, `observer`, `standalone`; "" while it serves no clients."""

    @property
    def warning(self) -> str:
        """Why it must be upgraded; "" if it need not."""
        if self.version not in _LOSING or self.mode == "standalone":
            return ""
        return (
            f"ZooKeeper at {self.address} is version {'.'.join(map(str, self.version))}, which can"
            " lose acknowledged changes when servers restart (ZOOKEEPER-4925): partitions may"
            " lose their ledgers; upgrade the ensemble to 3.9.5 or newer"
        )


async def ask_servers(hosts: str, tls: ssl.SSLContext | None = None) -> list[ZooKeeperServer]:
    """The servers of `HOST:PORT[,HOST:PORT...]` that answer within ASK_TIMEOUT_S.

    Raises RequestInvalid.
    """
    asked = (_ask(host, port, tls) for host, port in parse_hosts(hosts))
    return [server for server in await asyncio.gather(*asked) if server is not None]


async def _ask(host: str, port: int, tls: ssl.SSLContext | None) -> ZooKeeperServer | None:
    text = ""
    with suppress(OSError, UnicodeError, TimeoutError):
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=tls, server_hostname=None if tls is None else host
            )
            try:
                writer.write(b"srvr")
                text = await _read(reader)
            finally:
                writer.close()
    version, mode = _VERSION.search(text), _MODE.search(text)
    if version is None:
        return None
    major, minor, patch = map(int, version.groups())
    return ZooKeeperServer(f"{host}:{port}", (major, minor, patch), mode[1] if mode else "")


async def _read(reader: asyncio.StreamReader) -> str:
    """The answer up to its end or to ANSWER_BYTES_MAX."""
    answer = b""
    while len(answer) < ANSWER_BYTES_MAX and (part := await reader.read(ANSWER_BYTES_MAX)):
        answer += part
    return answer.decode("ascii", "replace")
