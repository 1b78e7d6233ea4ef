"""`grpc.health.v1.Health`: whether a server, or one of its services, is ready.

Invariants: knows names and states; who changes them is another's business. A watcher costs
nothing until a state changes. Source: grpc-proto, `grpc/health/v1/health.proto`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.grpc.service import CallRefused, Method, Status
from headrace.runtime.protobuf_wire import ProtobufInvalid, bytes_field, number_field, texts

if TYPE_CHECKING:
    from headrace.grpc.service import Call

SERVICE: Final = "grpc.health.v1.Health"
WATCHERS_MAX: Final = 1000
"""Further ones are refused. Load balancers keep one call per connection."""
_SERVICE_FIELD, _STATUS_FIELD = 1, 1


class Serving(IntEnum):
    """`HealthCheckResponse.ServingStatus`. Do not change: sent on the wire."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The states of a server and its services."""

    def __init__(self, *services: str) -> None:
        self._states = dict.fromkeys(("", *services), Serving.SERVING)
        """By service; the empty name is the whole server."""
        self._watchers: dict[Call, str] = {}

    def set(self, service: str, state: Serving) -> None:
        """Change a state, and notify those who watch it."""
        if self._states.get(service) == state:
            return
        self._states[service] = state
        for call, name in list(self._watchers.items()):
            if name == service:
                call.send(_response(state))

    def set_all(self, state: Serving) -> None:
        """Change the state of the server and all of its services."""
        for service in self._states:
            self.set(service, state)

    def methods(self) -> list[Method]:
        """What a server serves of it."""
        return [
            Method(f"/{SERVICE}/Check", self._check),
            Method(f"/{SERVICE}/List", self._list),
            Method(f"/{SERVICE}/Watch", self._watch),
        ]

    def _check(self, call: Call, body: bytes) -> None:
        state = self._states.get(_service(body))
        if state is None:
            raise CallRefused(Status.NOT_FOUND, "this server has no such service")
        call.respond(_response(state))

    def _list(self, call: Call, _body: bytes) -> None:
        call.respond(
            b"".join(
                bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, _response(state)))
                for name, state in self._states.items()
            )
        )

    def _watch(self, call: Call, body: bytes) -> None:
        service = _service(body)
        if len(self._watchers) >= WATCHERS_MAX:
            raise CallRefused(Status.RESOURCE_EXHAUSTED, f"more than {WATCHERS_MAX} watchers")
        self._watchers[call] = service
        call.on_cancel(partial(self._watchers.__delitem__, call))
        call.send(_response(self._states.get(service, Serving.SERVICE_UNKNOWN)))


def _service(body: bytes) -> str:
    """The last one, as protobuf reads a repeated single field. Raises CallRefused."""
    try:
        return texts(body, _SERVICE_FIELD)[-1:][0] if body else ""
    except (ProtobufInvalid, IndexError) as error:
        raise CallRefused(Status.INVALID_ARGUMENT, "not a HealthCheckRequest") from error


def _response(state: Serving) -> bytes:
    return number_field(_STATUS_FIELD, state)
