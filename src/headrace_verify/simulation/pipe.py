"""One direction of a simulated connection: data arrives in order, or when a link heals.

Invariants: transports calls from one place to another and ignores their content. Each piece has its
own random delay and arrives after earlier ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.simulation.loop import Host, context_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.simulation.network import Network

HELD_UP_MAX_S = 3.0
"""The maximum delay of `hold_up`."""


class Pipe:
    """One direction of one connection."""

    __slots__ = ("_network", "held", "is_closed", "last_s", "link")

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self.link = (source, target)
        self.last_s = 0.0
        self.held: list[tuple[Callable[..., None], tuple[Any, ...], Host | None]] = []
        self.is_closed = False

    def send(self, host: Host | None, deliver: Callable[..., None], *arguments: Any) -> None:
        """Have `deliver` called at the other end, by `host`, after everything that was sent
        before."""
        if self.is_closed:
            return
        if self.held or self._network.is_blocked(self.link):
            if not self.held:
                self._network.holding.append(self)
            self.held.append((deliver, arguments, host))
            return
        self._post(deliver, arguments, host)

    def hold_up(self, point: str) -> None:
        """If the fault point hits, the next data is late, and so is everything after it."""
        fault_points = self._network.loop.fault_points
        if fault_points.does(point):
            late_s = fault_points.strength(point) * HELD_UP_MAX_S
            self.last_s = max(self.last_s, self._network.loop.now_s + late_s)

    def _post(
        self, deliver: Callable[..., None], arguments: tuple[Any, ...], host: Host | None
    ) -> None:
        network = self._network
        at_s = max(self.last_s, network.loop.now_s + network.delay_s(self.link))
        self.last_s = at_s
        network.messages += 1
        network.loop.deliver_at(at_s, self._arrive, deliver, arguments, context=context_of(host))

    def _arrive(self, deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.is_closed:
            deliver(*arguments)

    def release(self) -> None:
        """The link has healed."""
        held, self.held = self.held, []
        for deliver, arguments, host in held:
            self._post(deliver, arguments, host)
