"""The common part of the systems without Kafka's protocol: separate processes with one guarantee.

Invariants: this module has the life cycle of a server (an empty folder, a port, started, ready,
stopped); its command, its readiness check and its tools are in its own module.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from headrace.dev_cluster.ports import free_port
from headrace_bench.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from headrace_bench.loads import Acknowledge
    from headrace_bench.tools import Steady, Window


class OwnServer:
    """One server (and its auxiliary processes) in its own folder; see Side."""

    acknowledges: Collection[Acknowledge] = ()

    def __init__(self, name: str, folder: Path, policy: str, words: str) -> None:
        self.name = name
        self.policy = policy
        self.words = words
        self.ready_s = 0.0
        self.port = 0
        self.processes = Processes(name, folder)

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return self.processes.pids

    def start(self) -> None:
        """See Side."""
        self.processes.clear()
        self.port = free_port()
        began = time.perf_counter()
        self.spawn()
        self.processes.wait_until(self.answers)
        self.ready_s = time.perf_counter() - began

    def spawn(self) -> None:
        """Start its processes, listening on `port`, with their data in `processes.folder`."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it responds to a request by now."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        """See Side."""
        return self.processes.is_alive()

    def stop(self) -> None:
        """See Side."""
        self.processes.stop()

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side; systems that can acknowledge override it."""
        raise NotImplementedError

    def exchange(self, ask: bytes, is_whole: bytes, refusal: bytes = b"-ERR") -> bool:
        """Send `ask` on a new connection; returns whether the response contains `is_whole`."""
        seen = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(ask)
                while is_whole not in seen and refusal not in seen:
                    more = connection.recv(4096)
                    if not more:
                        return False
                    seen += more
        except OSError:
            return False
        return is_whole in seen
