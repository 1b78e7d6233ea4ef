"""Connections that the system closes before all others of a killed process.

Linux closes the descriptors of a killed process from the highest to the lowest. The peer of a
connection with a high descriptor therefore learns of the death before all other peers do, and
before any request that they send because of it.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket

DESCRIPTOR_MAX = 16_384
"""The table of open files is as long as the highest one: this costs 128 KiB."""
RESERVED = 64


async def connect_early(host: str, port: int) -> socket.socket | None:
    """Connect with a high descriptor; None on a loop that has none (simulation). Raises OSError."""
    loop = asyncio.get_running_loop()
    if type(loop).sock_connect is asyncio.AbstractEventLoop.sock_connect:
        return None
    problem = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        made = _raised(socket.socket(family, kind, protocol))
        try:
            made.setblocking(False)
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            problem = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise problem


def _raised(made: socket.socket) -> socket.socket:
    """The socket under a high descriptor, or as it is if there is none free."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], DESCRIPTOR_MAX)
    try:
        high = fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, max(limit - RESERVED, 0))
    except OSError:
        return made
    made.close()
    return socket.socket(fileno=high)
