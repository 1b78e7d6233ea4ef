"""Ports for servers that return to theirs after a restart.

Invariant: they are below the range from which the system gives ports to outgoing connections and to
listeners on port 0. There, while a server is down, another process could be given its port, and a
client that keeps connecting to it could even be connected to itself (TCP's simultaneous open).
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.dev_cluster.processes import ProcessNotReady
from headrace.dev_cluster.settings import LOOPBACK
from headrace.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from collections.abc import Collection

_PORTS = range(12_000, 32_000)
_ATTEMPTS_MAX = 1_000


def free_ports(count: int, taken: Collection[int] = ()) -> int:
    """The first of `count` consecutive ports of the loopback address on which nothing listens.

    None of them is in `taken`. Raises ProcessNotReady.
    """
    assert count > 0, count
    randomness = SystemRandomness()
    places = len(_PORTS) // count
    for _ in range(_ATTEMPTS_MAX):
        first = _PORTS.start + randomness.below(places) * count
        wanted = range(first, first + count)
        if any(port in taken for port in wanted):
            continue
        with ExitStack() as stack:
            try:
                for port in wanted:
                    stack.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError:
                continue
        return first
    raise ProcessNotReady(f"no {count} consecutive ports are free in {_PORTS}")


def free_port() -> int:
    """A port of the loopback address; see free_ports."""
    return free_ports(1)
