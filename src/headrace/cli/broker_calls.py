"""Requests to single brokers, for what the client library does not offer.

Invariants: a failure is a CommandFailed that names the broker. Error codes inside answers are the
caller's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.raw_request import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.session import Session

FIND_COORDINATOR = 10, 4
_GROUP_KEY = 0


def ask_broker(
    session: Session,
    address: str,
    api: tuple[int, int],
    body: dict[str, Any],
) -> Any:
    """One broker's answer. Raises CommandFailed."""
    from headrace.kafka.wire.primitives import FrameInvalid
    from headrace.kafka.wire.schema import read_response, write_request

    request = write_request(*api, body)
    try:
        answer = ask(address, *api, request, session.timeout_s, is_flexible=True)
        return read_response(*api, answer, 0)
    except (OSError, FrameInvalid) as error:
        raise CommandFailed(
            f"the broker at {address} did not respond ({error})",
            "Check that it is reachable and a broker of this version",
            FAILED,
        ) from error


def brokers(session: Session) -> Iterator[tuple[int, str]]:
    """(id, address) of each broker of the cluster."""
    for number, broker in sorted(session.cluster_metadata().brokers.items()):
        yield number, f"{broker.host}:{broker.port}"


def group_coordinator(session: Session, group: str) -> str:
    """The address of the broker that coordinates the group. Raises CommandFailed."""
    for _number, address in brokers(session):
        body = {"key_type": _GROUP_KEY, "coordinator_keys": (group,)}
        (found,) = ask_broker(session, address, FIND_COORDINATOR, body).coordinators
        if int(found.error_code) == 0:
            return f"{found.host}:{found.port}"
    raise CommandFailed(
        f"group {group!r} currently has no coordinator", "Try again in a moment", FAILED
    )
