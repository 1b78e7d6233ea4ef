"""`headrace group diagnose` and `history`: say why a group's consumers are slow, and since when.

Invariants: what is said is the broker's, by `GET /v1/groups/{group}/diagnosis` and `/lag`; nothing
is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, tell
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


@click.command()
@click.argument("group", type=GROUP_NAME)
@click.option(
    "--span",
    "span_s",
    type=Duration(),
    default="6s",
    show_default=True,
    help="Between the two looks at the group, at most 60s; longer than its consumers' commit"
    " interval.",
)
@HTTP
@AS_JSON
@click.pass_obj
def diagnose(session: CliSession, /, group: str, span_s: float, as_json: bool) -> None:
    """Say why a group's consumers are slow: causes, evidence and next steps."""
    path = f"{path_of('groups', group, 'diagnosis')}?span_ms={round(span_s * 1_000)}"
    found = Web(session).ask("GET", path, wait_s=span_s)
    if as_json:
        print_json(found)
        return
    for one in found["findings"]:
        tell(one["sentence"])
        evidence = ", ".join(f"{name} {value}" for name, value in one["evidence"].items())
        tell(f"  evidence: {evidence}")
        tell(f"  next: {one['next_step']}")


@click.command()
@click.argument("group", type=GROUP_NAME)
@HTTP
@AS_JSON
@click.pass_obj
def history(session: CliSession, /, group: str, as_json: bool) -> None:
    """Show the lag of a group over the last hour, every 15 seconds, as its brokers sampled it.

    The lag in time is the age of the oldest record that waits: "-" where it was not in memory."""
    found = Web(session).ask("GET", path_of("groups", group, "lag"))
    if as_json:
        print_json(found)
        return
    rows = [_row(one) for one in found["points"]]
    empty = "no lag was sampled yet: look again in a minute"
    print_table(["time", "lag", "lag in time"], rows, empty=empty)
    if found["trend"] is not None:
        rate, span_s = found["trend"]["records_per_s"], found["trend"]["span_ms"] // 1_000
        tell(f"{rate:+,.1f} records a second over the last {span_s} s")
    for one in found.get("failed", []):
        tell(f"broker {one['broker']}: {one['error']['detail']}", err=True)


def _row(one: dict[str, Any]) -> list[str]:
    bound = ">=" if one["is_partial"] else ""
    age = "-" if one["lag_ms"] is None else f"{bound}{one['lag_ms'] / 1_000:.1f} s"
    return [iso_time(one["at_ms"]), f"{bound}{one['lag_records']}", age]
