"""One client of the load: a thread that does its turn again and again until all is over.

Rules of the room: a client gives no reason for being refused or cut off. If it is, that is noted,
and it goes on with a new connection: a soak does not end at its first fault.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.verify.chance import seeded
from headrace.verify.kafka_wire import KafkaWire

if TYPE_CHECKING:
    from typing import Self

FAULTS_KEPT = 10
TIMEOUT_S = 60


class Worker(threading.Thread):
    """See the module. A subclass has a `turn`, and says how long it rests between two."""

    rest_s = 0.1

    def __init__(self, address: tuple[str, int], seed: str) -> None:
        super().__init__(name=f"soak-{seed}", daemon=True)
        self.address = address
        self.chance = seeded(seed)
        self.over = threading.Event()
        self.turns = 0
        self.faults: list[str] = []

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
    """A client with one connection of its own, which is made anew when it breaks."""

    def __init__(self, address: tuple[str, int], seed: str) -> None:
        super().__init__(address, seed)
        self._wire: KafkaWire | None = None

    @property
    def wire(self) -> KafkaWire:
        """The connection. Raises OSError."""
        if self._wire is None:
            self._wire = KafkaWire(self.address, TIMEOUT_S)
        return self._wire

    def fault(self, what: object) -> None:
        """See Worker."""
        super().fault(what)
        self.end()

    def end(self) -> None:
        """See Worker."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def ready(self) -> Self:
        """Connect now. Raises OSError."""
        assert self.wire is not None
        return self
