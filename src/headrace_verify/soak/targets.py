"""The targets of a soak: one broker, the workers of one machine, brokers over ZooKeeper and
bookies.

Invariants: `Soaked` is the interface: a run starts it, passes its addresses to the load, samples
its processes and disks, and stops it. No faults are injected: a process that exits did so on its
own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace_verify.blackbox.workers import worker_pid
from headrace_verify.real_broker import RealBroker
from headrace_verify.self_proof import spoiled_launch
from headrace_verify.soak.samples import folder_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.soak.samples import Shared

BROKER, WORKERS, CLUSTER = "broker", "workers", "cluster"
TARGETS = (BROKER, WORKERS, CLUSTER)
WORKER_COUNT = 2
BROKER_OPTIONS = ("--retention-check-interval-ms", "1000")


class Watched(NamedTuple):
    """A sampled process."""

    name: str
    """Empty: there is no other."""
    pid: int | None
    """None: it cannot be found here."""
    http: tuple[str, int] | None
    """The address of its metrics; None: it has none."""


class Soaked(Protocol):
    """A target of a soak."""

    copies: float
    """The maximum number of copies of each byte of a log."""

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Of all brokers, once they are started."""
        ...

    @property
    def http_addresses(self) -> Sequence[tuple[str, int]]:
        """Likewise."""
        ...

    def start(self) -> None:
        """Start it and wait until it serves. Raises HeadraceError."""
        ...

    def stop(self) -> None:
        """Stop it, and leave no process running."""
        ...

    def watched(self) -> Sequence[Watched]:
        """All of its processes."""
        ...

    def disk_bytes(self) -> int:
        """The size of its data on disk."""
        ...

    def shared(self, at_s: float) -> Shared | None:
        """What brokers have left in shared storage; None if there is none, or not now, because a
        check may be expensive."""
        ...

    def ended(self) -> str:
        """The process that has exited on its own, with the end of its log; empty if none has."""
        ...

    def logs(self) -> Sequence[Path]:
        """Of brokers and supervisors."""
        ...


class OneBroker:
    """A standalone broker."""

    copies: float = 1

    def __init__(self, folder: Path, bug: str = "", options: Sequence[str] = ()) -> None:
        launch = spoiled_launch("soak", bug) if bug else ()
        self._broker = RealBroker(folder, (*BROKER_OPTIONS, *options), launch)

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """See Soaked."""
        return self._broker.addresses

    @property
    def http_addresses(self) -> Sequence[tuple[str, int]]:
        """See Soaked."""
        return self._broker.http_addresses

    def start(self) -> None:
        """See Soaked."""
        self._broker.start()

    def stop(self) -> None:
        """See Soaked."""
        self._broker.terminate()

    def watched(self) -> Sequence[Watched]:
        """See Soaked."""
        return [Watched("", self._broker.pid, self._broker.http_address)]

    def disk_bytes(self) -> int:
        """See Soaked."""
        return folder_bytes(self._broker.data_dir)

    def shared(self, _at_s: float) -> None:
        """See Soaked."""
        return

    def ended(self) -> str:
        """See Soaked."""
        return f"the broker: {self._broker.log_tail()}" if self._broker.has_ended else ""

    def logs(self) -> Sequence[Path]:
        """See Soaked."""
        return [self._broker.log_path]


class Workers(OneBroker):
    """Workers of one machine, and their supervisor."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, options=("--workers", str(WORKER_COUNT)))
        self._pids: list[int | None] = []

    def start(self) -> None:
        """See Soaked."""
        super().start()
        above = self._broker.pid
        assert above is not None, "not started"
        self._pids = [worker_pid(above, number) for number in range(WORKER_COUNT)]

    def watched(self) -> Sequence[Watched]:
        """See Soaked."""
        workers = [
            Watched(f"worker {number}", *of)
            for number, of in enumerate(zip(self._pids, self.http_addresses, strict=True))
        ]
        return [*workers, Watched("the supervisor", self._broker.pid, None)]

    def ended(self) -> str:
        """See Soaked: the supervisor would restart a worker."""
        if self._broker.has_ended:
            return f"the supervisor: {self._broker.log_tail()}"
        if any(pid is not None and not Path(f"/proc/{pid}").exists() for pid in self._pids):
            return f"a worker: {self._broker.log_tail()}"
        return ""
