"""Requests to single brokers, for APIs that the client library lacks.

Invariants: a failure is a CommandFailed that names the broker. Callers handle error codes in
responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.raw_request import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.session import CliSession

FIND_COORDINATOR = 10, 4
_GROUP_KEY = 0


def ask_broker(
    session: CliSession,
    address: str,
    api: tuple[int, int],
    body: dict[str, Any],
) -> Any:
    """Return one broker's response. Raises CommandFailed."""
    from headrace.kafka.wire.primitives import FrameInvalid
    from headrace.kafka.wire.schema import read_response, write_request

    request = write_request(*api, body)
    try:
        answer = ask(session, address, api, request, is_flexible=True)
        return read_response(*api, answer, 0)
    except (OSError, FrameInvalid) as error:
        raise CommandFailed(
            f"the broker at {address} did not respond ({error})",
            "Check that it is reachable and a broker of this version",
            FAILED,
        ) from error


def brokers(session: CliSession) -> Iterator[tuple[int, str]]:
    """Return (id, address) of each broker of the cluster."""
    for number, broker in sorted(session.cluster_metadata().brokers.items()):
        yield number, f"{broker.host}:{broker.port}"


def group_coordinator(session: CliSession, group: str) -> str:
    """Return the address of the group's coordinator. Raises CommandFailed."""
    for _number, address in brokers(session):
        body = {"key_type": _GROUP_KEY, "coordinator_keys": (group,)}
        (found,) = ask_broker(session, address, FIND_COORDINATOR, body).coordinators
        if int(found.error_code) == 0:
            return f"{found.host}:{found.port}"
    raise CommandFailed(
        f"group {group!r} currently has no coordinator", "Try again in a moment", FAILED
    )
