"""`headrace half`: transactional (half) messages; list them and their outcomes, settle some."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from headrace.cli.completion import complete_topics
from headrace.cli.failures import CONFLICT, CommandFailed
from headrace.cli.http_api import HTTP, call, pages, path_of
from headrace.cli.output import iso_time, print_json, print_table

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
TOPIC = click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
MESSAGE_IDS = click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
REASON = click.option("--reason", default="", help="Kept with the outcome.")
AT_ONCE = 500


@click.group()
def half() -> None:
    """Half messages: list, commit, roll back.

    \b
    Examples:
      headrace half list orders
      headrace half list orders --settled
      headrace half commit orders order-17
      headrace half rollback orders order-18 --reason "payment failed"
    """


@half.command("list")
@TOPIC
@click.option("--settled", "is_settled", is_flag=True, help="Show what became of messages.")
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@HTTP
@AS_JSON
def list_(topic: str, is_settled: bool, count: int, address: str, as_json: bool) -> None:
    """List half messages that wait for their producer, or with --settled their outcomes."""
    state = "settled" if is_settled else "pending"
    path = path_of("topics", topic, "half")
    found = list(
        islice(pages(address, path, "half", limit=min(count, AT_ONCE), state=state), count)
    )
    if as_json:
        print_json(found)
    elif is_settled:
        rows = [[*_names(one), iso_time(one["settled_ms"]), one["reason"]] for one in found]
        print_table(["partition", "message id", "group", "outcome", "settled", "reason"], rows)
    else:
        rows = [[*_names(one), iso_time(one["next_check_ms"]), one["checks"]] for one in found]
        print_table(["partition", "message id", "group", "state", "next check", "checks"], rows)


def _names(one: dict[str, Any]) -> list[Any]:
    return [one["partition"], one["message_id"], one["group"], one["state"]]


@half.command()
@TOPIC
@MESSAGE_IDS
@REASON
@HTTP
@AS_JSON
def commit(
    topic: str, message_ids: tuple[str, ...], reason: str, address: str, as_json: bool
) -> None:
    """Deliver half messages."""
    _settle("commit", topic, message_ids, reason, address, as_json=as_json)


@half.command()
@TOPIC
@MESSAGE_IDS
@REASON
@HTTP
@AS_JSON
def rollback(
    topic: str, message_ids: tuple[str, ...], reason: str, address: str, as_json: bool
) -> None:
    """Drop half messages."""
    _settle("rollback", topic, message_ids, reason, address, as_json=as_json)


def _settle(
    how: str, topic: str, message_ids: tuple[str, ...], reason: str, address: str, *, as_json: bool
) -> None:
    named = [{"message_id": message_id, "reason": reason} for message_id in message_ids]
    path = path_of("topics", topic, "half", "settle")
    results = call(address, "POST", path, {how: named})["results"]
    if as_json:
        print_json(results)
    else:
        rows = [[one["message_id"], one.get("outcome"), one.get("error")] for one in results]
        print_table(["message id", "outcome", "error"], rows)
    failed = sum(not one["ok"] for one in results)
    if failed:
        raise CommandFailed(
            f"{failed} of {len(results)} were not settled",
            "See what is pending and what was settled: headrace half list TOPIC [--settled]",
            CONFLICT,
        )
