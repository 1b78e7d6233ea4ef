"""When the handlers of calls run: in turns with the requests of every protocol (`loop_turns`).

Invariants: knows who calls, not what. A call that begins without a task of its own does so in the
turn in which it has arrived (`grpc/turns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.security.client_addresses import client_address
from headrace.broker.services.fair_shares import path_of
from headrace.runtime.loop_turns import SLOW_NS, Paced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services
    from headrace.grpc.service import Call
    from headrace.runtime.loop_turns import Path
    from headrace.runtime.tasks import Tasks


class CallTurns:
    """See the module."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._tasks = tasks

    def spawn(
        self,
        call: Call,
        session: ClientSession | None,
        handle: Callable[[], Coroutine[Any, Any, None]],
        name: str,
    ) -> None:
        """Run a handler in a task each step of which takes a turn. `session`: None if the call's
        signature has to be checked first."""
        self._tasks.spawn(self._run(call, session, handle), name)

    async def _run(
        self,
        call: Call,
        session: ClientSession | None,
        handle: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        services = self._services
        path = self._path(call, session)
        paced = Paced(services.turns, path, handle(), services.appends.clock.now_ns)
        del handle  # it has the request, which may wait for long without it
        try:
            await paced
        finally:
            call.connection.is_slow = paced.spent_ns > SLOW_NS

    def _path(self, call: Call, session: ClientSession | None) -> Path:
        if session is None:
            user: Path = None, client_address(call.peer)
        else:
            user = path_of(session, self._services.fair_shares.of(session))
        return *user, call.connection.is_slow, call.connection
