"""`headrace group past`: the offsets that groups had committed in a topic at an earlier time.

Invariants: uses HTTP; what is known of that time is the broker's to say, nothing is guessed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import TimeType
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

WHY: Final = {
    "none": "none: it had committed nothing",
    "trimmed": "unknown: a snapshot has replaced the commits of that time",
    "in_transaction": "unknown: it may have been in a transaction that had not ended",
    "too_large": "unknown: the log of offsets is too long to be read for this",
}


def past_offsets(session: CliSession, topic: str, at_ms: int, group: str | None) -> dict[str, Any]:
    """What the broker knows of that time, of one group or all. Raises CommandFailed."""
    query = {"at_ms": at_ms} | ({} if group is None else {"group": group})
    path = path_of("topics", topic, "past-offsets")
    found: dict[str, Any] = Web(session).ask("GET", f"{path}?{urlencode(query)}")
    return found


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.option("--at", "at_ms", required=True, type=TimeType(), help="A time, or an age (15m).")
@click.option("--group", "-g", type=GROUP_NAME, help="Default: all groups.")
@HTTP
@AS_JSON
@click.pass_obj
def past(session: CliSession, /, topic: str, at_ms: int, group: str | None, as_json: bool) -> None:
    """Show the offsets that groups had committed in TOPIC at an earlier time.

    They are exact, or unknown: brokers keep earlier commits only until a snapshot of the groups
    replaces them. Share groups commit no offsets.

    \b
    Examples:
      headrace group past orders --at 15m
      headrace group past orders --at 2013-01-31T12:00 --group billing
      headrace group reset billing --topic orders --as-of 15m --dry-run
    """  # fmt: skip
    found = past_offsets(session, topic, at_ms, group)
    if as_json:
        print_json(found)
        return
    rows = [
        [
            of["group"],
            one["partition"],
            WHY.get(one["state"], one["state"]) if one["offset"] is None else one["offset"],
            "" if one["committed_ms"] is None else iso_time(one["committed_ms"]),
        ]
        for of in found["groups"]
        for one in of["offsets"]
    ]
    headings = ["group", "partition", "offset then", "committed"]
    print_table(headings, rows, empty="no group is known to have committed in this topic")
    if found["is_partial"]:
        say("there are more: a broker did not answer, or there are too many for one answer")
