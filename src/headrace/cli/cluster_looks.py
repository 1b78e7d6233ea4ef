"""`headrace cluster brokers`, `moves` and `lacking`: what the brokers of a cluster are doing.

Invariants: uses HTTP; any broker answers for all, and those that do not answer are named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import AS_JSON, Cell, print_json, print_table, tell
from headrace.cli.web import HTTP, Web

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

PAGE = 1_000


@click.command()
@HTTP
@AS_JSON
@click.pass_obj
def brokers(session: CliSession, /, as_json: bool) -> None:
    """Show what each broker does, means of the last minute, and its object storage."""
    answer = Web(session).ask("GET", "/v1/brokers?details=true")
    if as_json:
        print_json(answer)
        return
    titles = [
        *("broker", "partitions", "state", "in/s", "bytes in/s", "bytes out/s", "cpu %"),
        *("connections", "problems", "copies missing", "to offload", "object storage"),
    ]
    print_table(titles, [_row(one) for one in answer["brokers"]])
    say_failed(answer)


def _row(one: dict[str, Any]) -> list[Cell]:
    figures: dict[str, Any] = one.get("figures", {})
    names = ("records_in_per_s", "bytes_in_per_s", "bytes_out_per_s", "cpu_percent",
             "connections", "problems", "copies_missing")  # fmt: skip
    tier = figures.get("tier") or {}
    states = [text for name, text in (("is_draining", "draining"), ("is_leaving", "leaving"))
              if one[name]]  # fmt: skip
    return [
        *(one["id"], one["partitions"], ", ".join(states) or "live"),
        *(figures.get(name) for name in names),
        tier.get("pending_ledgers"),
        tier.get("problem") or ("" if not tier else "well"),
    ]


@click.command()
@HTTP
@AS_JSON
@click.pass_obj
def moves(session: CliSession, /, as_json: bool) -> None:
    """List the partitions that move from one broker to another, or wait for it.

    By reason: reassigned by an operator, drained from a broker, balanced by load, or placed because
    brokers came or left.
    """
    pages = Web(session).ask_pages("GET", "/v1/moves", query={"limit": PAGE})
    found = [one for page in pages for one in page["moves"]]
    if as_json:
        print_json(found)
        return
    names = ["topic", "partition", "from", "to", "reason"]
    rows = [[one[name] for name in names] for one in found]
    print_table(names, rows, empty="all partitions are where they belong")


@click.command()
@HTTP
@AS_JSON
@click.pass_obj
def lacking(session: CliSession, /, as_json: bool) -> None:
    """List the ledgers of all topics of which copies are missing, 1,000 of each broker."""
    answer = Web(session).ask("GET", "/v1/ledgers/lacking")
    if as_json:
        print_json(answer)
        return
    names = ["topic", "partition", "ledger", "copies_missing"]
    rows = [[one[name] for name in names] for one in answer["ledgers"]]
    print_table(names, rows, empty="no copies are missing")
    if answer["count"] > len(rows):
        tell(f"{answer['count']:,} ledgers in all", err=True)
    say_failed(answer)


def say_failed(answer: dict[str, Any]) -> None:
    """Name the brokers that an answer lacks."""
    for one in answer.get("failed", []):
        tell(f"broker {one['broker']}: {one['error']['detail']}", err=True)
