"""One client of the load: a thread that does its turn again and again until all is over.

Invariants: a client gives no reason for being refused or cut off. If it is, that is noted,
and it goes on with a new connection: a soak does not end at its first fault.
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
"""For whoever is in charge to be found: partitions may move, and news of topics take their way."""
R = TypeVar("R")


class Asking:
    """Requests without a library, to whoever is in charge; see routing.Client.

    Of a broker that is alone no other answer than a sound one is taken, unless a group is being
    loaded; of several, "not here" and "not heard of yet" are answers, too, for PATIENCE_S.
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
        """How many requests had to be sent once more."""

    def pause(self, seconds: float) -> None:
        """See routing.Client."""
        self.over.wait(seconds)

    def of(self, place: Place) -> tuple[str, int]:
        """Where the leader of a partition is. Raises OSError."""
        return self.ask(lambda wire: wire.address, place)

    def ask(self, what: Callable[[KafkaWire], R], of: Place | Group | None = None) -> R:
        """The answer of whoever is in charge of `of`; of anybody without it. Raises OSError."""
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
        """Close and forget everything; the next request connects anew."""
        self._connection.drop()


class Worker(threading.Thread):
    """See the module. A subclass has a `turn`, and says how long it rests between two."""

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
        """The addresses, as libraries want them."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)

    def turn(self) -> None:
        """Do it once. Raises OSError if the broker has refused it or cut it off."""
        raise NotImplementedError

    def end(self) -> None:
        """Give back what it holds."""

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
        """Note what should not have happened."""
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"{type(self).__name__}: {what!r}"[:300])


class WireWorker(Worker):
    """A client without a library; its connections are made anew when they break."""

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
