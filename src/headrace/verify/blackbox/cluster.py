"""The brokers under test, as somebody sees them who may only start, kill, freeze and starve them.

Rules of the room: nothing of a broker is imported. `Cluster` is the seam: a run knows nodes by
number and a bootstrap address, so a cluster of several brokers with its bookies fits as well.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.errors import Fatal
from headrace.verify.real_broker import RealBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.verify.blackbox.link import Link, Network

FAKETIME_PLACES = ("/usr/lib", "/usr/local/lib", "/lib")


class Cluster(Protocol):
    """Nodes that may be harmed, each behind a link that may be cut."""

    @property
    def node_count(self) -> int:
        """How many nodes there are; they are numbered from 0."""
        ...

    @property
    def bootstrap(self) -> str:
        """Where clients connect: through the links."""
        ...

    @property
    def links(self) -> Sequence[Link]:
        """The links, by node."""
        ...

    def start(self, node: int) -> None:
        """Start it and wait until it serves. Raises Fatal."""
        ...

    def start_and_die(self, node: int, after_s: float) -> None:
        """Start it and kill it so soon after."""
        ...

    def stop(self, node: int) -> int:
        """Ask it to end; its exit code."""
        ...

    def kill(self, node: int) -> None:
        """kill -9."""
        ...

    def pause(self, node: int) -> None:
        """Freeze it."""
        ...

    def resume(self, node: int) -> None:
        """Thaw it."""
        ...

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """Writes behind so many bytes of any file fail from now on; None: they work again."""
        ...

    def set_clock(self, node: int, offset_s: float) -> None:
        """Let its wall clock jump. Only where `missing` does not name `clock`."""
        ...

    def missing(self) -> dict[str, str]:
        """Kinds of faults that cannot be had here, and why."""
        ...

    def is_alive(self, node: int) -> bool:
        """Whether its process runs."""
        ...

    def last_words(self, node: int) -> str:
        """The end of its log."""
        ...

    def close(self) -> None:
        """Kill all and remove their data."""
        ...


def find_faketime() -> str | None:
    """The library that libfaketime preloads: HEADRACE_FAKETIME's, or the installed one, or None."""
    named = os.environ.get("HEADRACE_FAKETIME")
    if named:
        return named
    for place in FAKETIME_PLACES:
        for path in sorted(Path(place).glob("**/faketime/libfaketimeMT.so.1")):
            return str(path)
    return None


class SingleBroker:
    """One broker of one machine."""

    def __init__(self, folder: Path, network: Network, bug: str | None = None) -> None:
        self._network = network
        self._clock_path = folder / "clock"
        self._faketime = find_faketime()
        link = network.link(lambda: self.broker.address)
        self.links = [link]
        host, port = link.address
        self.bootstrap = f"{host}:{port}"
        launch: tuple[str, ...] = ()
        if bug is not None:
            launch = (sys.executable, "-m", "headrace.verify.blackbox.spoiled", bug)
        options = ("--advertise", self.bootstrap, "--no-auto-create-topics")
        self.broker = RealBroker(folder, options, launch)
        if self._faketime is not None:
            self.set_clock(0, 0.0)
            self.broker.environment = {
                "LD_PRELOAD": self._faketime,
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_path),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }

    node_count = 1

    def start(self, node: int) -> None:
        """See Cluster."""
        self.broker.start()

    def start_and_die(self, node: int, after_s: float) -> None:
        """See Cluster."""
        early = threading.Timer(after_s, self.broker.kill_if_running)
        early.start()
        try:
            self.broker.start()
        except Fatal:
            pass  # it died before it was ready, as planned
        early.join()
        self.broker.kill()

    def stop(self, node: int) -> int:
        """See Cluster."""
        return self.broker.terminate()

    def kill(self, node: int) -> None:
        """See Cluster."""
        self.broker.kill()

    def pause(self, node: int) -> None:
        """See Cluster."""
        self._signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """See Cluster."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.broker.pid is not None:
            os.kill(self.broker.pid, number)

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """See Cluster. EFBIG instead of ENOSPC: every machine has it, and it cuts writes short."""
        if self.broker.pid is not None:
            limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
            limits = limit, resource.RLIM_INFINITY
            resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE, limits)

    def set_clock(self, node: int, offset_s: float) -> None:
        """See Cluster. Replaced at once: libfaketime reads it at any moment."""
        fresh = self._clock_path.with_suffix(".new")
        fresh.write_text(f"{offset_s:+.3f}\n")
        fresh.replace(self._clock_path)

    def missing(self) -> dict[str, str]:
        """See Cluster."""
        found = {}
        if self._faketime is None:
            found["clock"] = "libfaketime is not installed: the broker's clock does not jump"
        if not hasattr(resource, "prlimit"):
            found["disk"] = "no prlimit here: the disk does not fill up"
        return found

    def is_alive(self, node: int) -> bool:
        """See Cluster."""
        return self.broker.pid is not None and not self.broker.has_ended

    def last_words(self, node: int) -> str:
        """See Cluster."""
        return self.broker.last_words()

    def close(self) -> None:
        """See Cluster."""
        self.resume(0)
        self.broker.kill()
        shutil.rmtree(self.broker.data_dir, ignore_errors=True)
