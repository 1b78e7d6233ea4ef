"""One client of the load: a thread that repeats its operation until the end of the run.

Invariants: a client gives no reason to be rejected or disconnected. If it is, that is recorded, and
it continues with a new connection: a soak does not end at the first failure.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.routing import ELSEWHERE, RETRY_S, Connection
from headrace_verify.kafka_wire import Refused
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.blackbox.routing import Group, Place
    from headrace_verify.kafka_wire import KafkaWire

FAULTS_KEPT = 10
TIMEOUT_S = 60
GROUP_LOADING = {14, 15, 16}
PATIENCE_S = 60
"""For finding a leader or coordinator: partitions may move, and metadata takes time to
propagate."""
R = TypeVar("R")


class Asking:
    """Requests without a library, to the leader or coordinator; see routing.Client.

    A standalone broker must answer without errors, unless a group is being loaded; in a cluster,
    not-leader and unknown-topic errors are accepted, too, for PATIENCE_S.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        number: int = 0,
        over: threading.Event | None = None,
    ) -> None:
        self.addresses = addresses
        self.number = number
        self.over = over or threading.Event()
        self._connection = Connection(self, TIMEOUT_S)
        self._excused = ELSEWHERE if len(addresses) > 1 else GROUP_LOADING
        self.sent_on = 0
        """The number of retried requests."""

    def pause(self, seconds: float) -> None:
        """See routing.Client."""
        self.over.wait(seconds)

    def of(self, place: Place) -> tuple[str, int]:
        """Return the leader of a partition. Raises OSError."""
        return self.ask(lambda wire: wire.address, place)

    def ask(self, what: Callable[[KafkaWire], R], of: Place | Group | None = None) -> R:
        """Return the response of the leader or coordinator `of`, or of any broker. Raises
        OSError."""
        clock = SystemClock()
        end_ns = clock.now_ns() + PATIENCE_S * 10**9
        while True:
            try:
                return what(self._connection.wire(of))
            except Refused as error:
                self._connection.failed(error)
                if error.code not in self._excused or clock.now_ns() > end_ns:
                    raise
            self.sent_on += 1
            self.pause(RETRY_S)

    def close(self) -> None:
        """Close everything; the next request reconnects."""
        self._connection.drop()


class Worker(threading.Thread):
    """See the module. A subclass has a `turn`, and the pause between two turns."""

    rest_s = 0.1

    def __init__(self, addresses: Sequence[tuple[str, int]], seed: str) -> None:
        super().__init__(name=f"soak-{seed}", daemon=True)
        self.addresses = addresses
        self.rng = seeded(seed)
        self.over = threading.Event()
        self.turns = 0
        self.faults: list[str] = []

    @property
    def bootstrap(self) -> str:
        """The addresses, in the libraries' format."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    def turn(self) -> None:
        """One operation. Raises OSError if the broker has rejected or disconnected it."""
        raise NotImplementedError

    def end(self) -> None:
        """Release its resources."""

    def run(self) -> None:
        """See Thread."""
        while not self.over.is_set():
            try:
                self.turn()
                self.turns += 1
            except OSError as error:
                self.fault(error)
                self.over.wait(0.5)
            self.over.wait(self.rest_s)
        self.end()

    def fault(self, what: object) -> None:
        """Record a failure."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"{type(self).__name__}: {what!r}"[:300])


class WireWorker(Worker):
    """A client without a library; its connections are recreated when they break."""

    def __init__(self, addresses: Sequence[tuple[str, int]], seed: str) -> None:
        super().__init__(addresses, seed)
        self.asking = Asking(addresses, self.rng.randrange(len(addresses)), self.over)

    def fault(self, what: object) -> None:
        """See Worker."""
        super().fault(what)
        self.asking.close()

    def end(self) -> None:
        """See Worker."""
        self.asking.close()
