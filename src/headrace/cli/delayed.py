"""`headrace delayed`: lists, cancels and delivers delayed records.

Invariants: uses HTTP, and queries every broker that serves a part of the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import NOT_FOUND, USAGE, CommandFailed
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say_dry_run
from headrace.cli.parameters import CommandGroup
from headrace.cli.waiting import TOPIC, list_waiting
from headrace.cli.web import DRY_RUN, HTTP, Web, path_of, require_none_failed

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


@click.group(cls=CommandGroup)
def delayed() -> None:
    """List, cancel and deliver delayed records; show those that could not be delivered.

    \b
    Examples:
      headrace delayed list orders
      headrace delayed cancel orders --message-id order-17
      headrace delayed deliver orders --message-id order-18
    """


@delayed.command("list")
@TOPIC
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Only this partition.")
@HTTP
@AS_JSON
@click.pass_obj
def list_(
    session: CliSession, /, topic: str, count: int, partition: int | None, as_json: bool
) -> None:
    """List delayed records by due time, partition by partition."""
    query = {"limit": count, "partition": partition}
    effect = "their records are not listed"
    found = list_waiting(session, topic, "delayed", query, effect)
    found.sort(key=lambda one: (one["partition"], one["due_ms"]))
    if as_json:
        print_json(found)
        return
    rows = [
        [
            one["partition"],
            iso_time(one["due_ms"]),
            one["message_id"],
            one["key"],
            one["value_bytes"],
            one["receipt"],
        ]
        for one in found
    ]
    columns = ["partition", "due", "message id", "key", "bytes", "receipt"]
    print_table(columns, rows, empty=f"no messages of {topic} are waiting for their time")


@delayed.command()
@TOPIC
@HTTP
@AS_JSON
@click.pass_obj
def refused(session: CliSession, /, topic: str, as_json: bool) -> None:
    """List records that were due but could not be read, and why.

    Shows the last 100 per partition since its broker began to serve it. Offsets are those of the
    timer log, as in the broker's log.
    """
    path = path_of("topics", topic, "delayed", "refused")
    answer = Web(session).ask("GET", path)
    require_none_failed(answer, "their refused records are not listed")
    found = answer["refused"]
    if as_json:
        print_json(found)
        return
    rows = [
        [one["partition"], one["offset"], iso_time(one["refused_ms"]), one["reason"]]
        for one in found
    ]
    columns = ["partition", "offset", "refused", "reason"]
    print_table(columns, rows, empty=f"no delayed message of {topic} was refused")


RECEIPTS = click.argument("receipts", metavar="[RECEIPT]...", nargs=-1)
MESSAGE_IDS = click.option(
    "--message-id", "message_ids", multiple=True, help="By message id; repeatable."
)


@delayed.command()
@TOPIC
@RECEIPTS
@MESSAGE_IDS
@DRY_RUN
@HTTP
@AS_JSON
@click.pass_obj
def cancel(session: CliSession, /, **asked: Any) -> None:
    """Cancel delayed records by message id or by the receipts that `list` shows."""
    _change(session, "cancel", "cancelled", **asked)


@delayed.command()
@TOPIC
@RECEIPTS
@MESSAGE_IDS
@DRY_RUN
@HTTP
@AS_JSON
@click.pass_obj
def deliver(session: CliSession, /, **asked: Any) -> None:
    """Deliver delayed records now, by message id or by the receipts that `list` shows."""
    _change(session, "deliver", "delivered", **asked)


def _change(
    session: CliSession,
    verb: str,
    done: str,
    *,
    topic: str,
    receipts: tuple[str, ...],
    message_ids: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    if not receipts and not message_ids:
        raise CommandFailed(
            "no records specified; nothing was changed",
            "Specify receipts from `headrace delayed list`, or --message-id",
            USAGE,
        )
    body = {"receipts": [*receipts], "message_ids": [*message_ids]}
    path = path_of("topics", topic, "delayed", verb, dry_run=dry_run)
    answer = Web(session).ask("POST", path, body)
    results = answer["results"]
    if as_json:
        print_json(results)
    else:
        print_table(
            ["record", f"would be {done}" if dry_run else done, "error"],
            [
                [one.get("receipt") or one["message_id"], one[done], one.get("error")]
                for one in results
            ],
        )
        say_dry_run(dry_run=dry_run)
    require_none_failed(answer, f"their records were not {'counted' if dry_run else done}")
    missed = [one for one in results if not one[done]]
    if missed:
        is_refused = any("error" in one for one in missed)
        why = "see the errors above" if is_refused else "they are no longer pending"
        were_not = "cannot be" if dry_run else "were not"
        raise CommandFailed(
            f"{len(missed)} of {len(results)} {were_not} {done}: {why}",
            "List pending records: headrace delayed list TOPIC",
            NOT_FOUND,
        )
