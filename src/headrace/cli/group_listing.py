"""Lists the groups of every type.

Invariants: queries each broker with Kafka's protocol, because the client library omits the types
that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.cli.broker_calls import ask_broker, brokers
from headrace.cli.failures import FAILED, CommandFailed

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

LIST_GROUPS: Final = 16, 5  # do not change: protocol. (key, version)
SHARE: Final = "share"
STREAMS: Final = "streams"


class GroupListed(NamedTuple):
    """One group of the cluster."""

    group: str
    state: str
    """In Kafka's terms: Stable, Empty, PreparingRebalance, ..."""
    type: str
    """`classic`, `consumer`, `share` or `streams`."""


def list_groups(session: CliSession) -> list[GroupListed]:
    """The groups of the cluster by name. Raises CommandFailed."""
    session.check_reachable()
    found: dict[str, GroupListed] = {}
    everything: dict[str, Any] = {"states_filter": (), "types_filter": ()}
    for number, address in brokers(session):
        answer = ask_broker(session, address, LIST_GROUPS, everything)
        if int(answer.error_code):
            raise CommandFailed(
                f"broker {number} cannot list its groups at the moment (code"
                f" {int(answer.error_code)})",
                "It may still be loading them: try again",
                FAILED,
            )
        for one in answer.groups:
            listed = GroupListed(one.group_id, one.group_state, one.group_type.lower())
            found[listed.group] = listed
    return sorted(found.values())


def type_of(session: CliSession, group: str) -> str | None:
    """The group's type; None if it does not exist."""
    return next((one.type for one in list_groups(session) if one.group == group), None)
