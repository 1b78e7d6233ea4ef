"""Ports for servers that return to theirs after a restart.

Invariant: they are below the range from which the system gives ports to outgoing connections and to
listeners on port 0. There, while a server is down, another process could be given its port, and a
client that keeps connecting to it could even be connected to itself (TCP's simultaneous open).
While it lives, a process chooses from a block of ports in which no other process chooses: servers
that two of them start at the same time, or one while a server of the other is down, have ports of
their own.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, Final

from headrace.dev_cluster.processes import ProcessNotReady
from headrace.dev_cluster.settings import LOOPBACK
from headrace.java.jars import cache_folder
from headrace.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PORTS: Final = range(12_000, 32_000)
_BLOCK_SIZE: Final = 500
_ATTEMPTS_MAX: Final = 1_000


class _Block:
    """The ports of one process, given in turn: one that was given comes again after all others."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock: IO[str] | None = None
        """Held until the process ends, however it ends."""
        self._ports = self._choose()
        self._next = 0

    def _choose(self) -> range:
        """A block that no other process has; all ports if there is none."""
        folder = cache_folder() / "ports"
        folder.mkdir(parents=True, exist_ok=True)
        starts = _PORTS[::_BLOCK_SIZE]
        turn = SystemRandomness().below(len(starts))
        for start in (*starts[turn:], *starts[:turn]):
            stream = (folder / str(start)).open("a")
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                stream.close()
                continue
            self._lock = stream
            return range(start, start + _BLOCK_SIZE)
        return _PORTS

    def places(self, count: int) -> Iterator[int]:
        """Where `count` ports in a row may begin: in the block, and then anywhere."""
        if self._lock is not None:
            for _ in range(_BLOCK_SIZE // count):
                if self._next + count > len(self._ports):
                    self._next = 0
                first = self._ports[self._next]
                self._next += count
                yield first
        randomness = SystemRandomness()
        for _ in range(_ATTEMPTS_MAX):
            yield _PORTS[randomness.below(len(_PORTS) - count + 1)]


_blocks: list[_Block] = []
"""This process's, once it has chosen a port."""


def free_ports(count: int, taken: Collection[int] = ()) -> int:
    """The first of `count` consecutive ports of the loopback address on which nothing listens.

    None of them is in `taken`. Raises ProcessNotReady.
    """
    assert count > 0, count
    if not _blocks or _blocks[0].pid != os.getpid():  # a fork has none yet
        _blocks[:] = [_Block()]
    for first in _blocks[0].places(count):
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
