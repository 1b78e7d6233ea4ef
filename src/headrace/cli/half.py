"""`headrace half`: lists transactional (half) messages and their outcomes, and settles them.

Invariants: uses HTTP; any broker answers for the whole topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import CONFLICT, CommandFailed
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say_dry_run
from headrace.cli.parameters import CommandGroup
from headrace.cli.waiting import TOPIC, list_waiting
from headrace.cli.web import DRY_RUN, HTTP, Web, path_of, require_none_failed

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

MESSAGE_IDS = click.argument("message_ids", metavar="MESSAGE_ID...", nargs=-1, required=True)
REASON = click.option("--reason", default="", help="Stored with the outcome.")


@click.group(cls=CommandGroup)
def half() -> None:
    """List, commit and roll back half messages.

    \b
    Examples:
      headrace half list orders
      headrace half list orders --settled
      headrace half commit orders order-17
      headrace half rollback orders order-18 --reason "payment failed"
    """


@half.command("list")
@TOPIC
@click.option(
    "--settled", "is_settled", is_flag=True, help="Show outcomes instead of pending messages."
)
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@HTTP
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, topic: str, is_settled: bool, count: int, as_json: bool) -> None:
    """List pending half messages, or with --settled the outcomes of others."""
    query = {"limit": count, "state": "settled" if is_settled else "pending"}
    effect = "their half messages are not listed"
    found = list_waiting(session, topic, "half", query, effect)
    found.sort(key=lambda one: one["partition"])
    if as_json:
        print_json(found)
    elif is_settled:
        rows = [[*_names(one), iso_time(one["settled_ms"]), one["reason"]] for one in found]
        columns = ["partition", "message id", "group", "outcome", "settled", "reason"]
        print_table(columns, rows, empty=f"no half message of {topic} was settled lately")
    else:
        rows = [[*_names(one), iso_time(one["next_check_ms"]), one["checks"]] for one in found]
        columns = ["partition", "message id", "group", "state", "next check", "checks"]
        print_table(columns, rows, empty=f"no half messages of {topic} are pending")


def _names(one: dict[str, Any]) -> list[Any]:
    return [one["partition"], one["message_id"], one["group"], one["state"]]


@half.command()
@TOPIC
@MESSAGE_IDS
@REASON
@DRY_RUN
@HTTP
@AS_JSON
@click.pass_obj
def commit(
    session: CliSession, /, topic: str, message_ids: tuple[str, ...], **options: Any
) -> None:
    """Commit half messages: they are delivered."""
    _settle(session, "commit", topic, message_ids, options)


@half.command()
@TOPIC
@MESSAGE_IDS
@REASON
@DRY_RUN
@HTTP
@AS_JSON
@click.pass_obj
def rollback(
    session: CliSession, /, topic: str, message_ids: tuple[str, ...], **options: Any
) -> None:
    """Roll back half messages: they are dropped."""
    _settle(session, "rollback", topic, message_ids, options)


def _settle(
    session: CliSession, how: str, topic: str, message_ids: tuple[str, ...], options: dict[str, Any]
) -> None:
    named = [{"message_id": one, "reason": options["reason"]} for one in message_ids]
    is_dry = options["dry_run"]
    path = path_of("topics", topic, "half", "settle", dry_run=is_dry)
    answer = Web(session).ask("POST", path, {how: named})
    results = answer["results"]
    if options["as_json"]:
        print_json(results)
    else:
        rows = [
            [one["message_id"], one.get("outcome"), one.get("settled_now"), one.get("error")]
            for one in results
        ]
        print_table(["message id", "outcome", "messages", "error"], rows)
        say_dry_run(dry_run=is_dry)
    require_none_failed(answer, "their half messages were not settled")
    failed = sum(not one["ok"] for one in results)
    if failed:
        raise CommandFailed(
            f"{failed} of {len(results)} {'cannot be' if is_dry else 'were not'} settled",
            "List pending and settled messages: headrace half list TOPIC [--settled]",
            CONFLICT,
        )
