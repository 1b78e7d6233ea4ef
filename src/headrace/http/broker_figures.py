"""The figures of each broker of a cluster: what it does, whether it is well, its object storage.

Invariants: each broker answers from its own history and counters; each is asked once for an answer,
and loads no log for it. Counters of object storage are since the broker's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.owner_calls import checked, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.services.services import Services
    from headrace.errors import HeadraceError
    from headrace.http.history import History
    from headrace.http.operations import Json

SPAN: Final = 12
"""Samples over which rates are means: a minute."""


class BrokerFigures:
    """See the module."""

    def __init__(
        self, services: Services, history: History, problems: Callable[[], list[Json]]
    ) -> None:
        """`problems()`: what is wrong on this broker."""
        self._services = services
        self._history = history
        self._problems = problems
        services.calls.offer_of_broker("brokers.figures", self._here)

    async def of_all(self) -> tuple[dict[int, Json], dict[int, HeadraceError]]:
        """(the figures of each live broker, the brokers that do not answer)."""
        return split(await self._services.calls.ask_brokers("brokers.figures", []))

    async def _here(self, asked: Any) -> Json:
        checked(asked)
        services, history = self._services, self._history
        last, found = history.taken - 1, dict[str, Any]()
        if last > history.first:
            found = history.point(last, max(last - SPAN, history.first))
            del found["at_ms"]
        replication = services.replication
        found["problems"] = len(self._problems())
        found["copies_missing"] = 0 if replication is None else sum(replication.lacking.values())
        found["tier"] = None if services.tiering is None else self._tier()
        return found

    def _tier(self) -> Json:
        assert self._services.tiering is not None
        found = self._services.tiering.figures()
        counters = found.counters
        return {
            "is_away": found.is_away,
            "problem": found.problem or None,
            "pending_ledgers": found.pending_ledgers,
            "pending_bytes": found.pending_bytes,
            **{name: getattr(counters, name) for name in sorted(counters.__slots__)},
        }
