"""`headrace delayed`: records that are due later; list them, cancel some."""

from __future__ import annotations

from itertools import islice

import click

from headrace.cli.completion import complete_topics
from headrace.cli.failures import NOT_FOUND, USAGE, CommandFailed
from headrace.cli.http_api import HTTP, call, pages, path_of
from headrace.cli.output import iso_time, print_json, print_table

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
TOPIC = click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
AT_ONCE = 500


@click.group()
def delayed() -> None:
    """Delayed records: list, cancel.

    \b
    Examples:
      headrace delayed list orders
      headrace delayed cancel orders --message-id order-17
    """


@delayed.command("list")
@TOPIC
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Of this partition alone.")
@HTTP
@AS_JSON
def list_(topic: str, count: int, partition: int | None, address: str, as_json: bool) -> None:
    """List records by the time at which they are due, partition by partition."""
    path = path_of("topics", topic, "delayed")
    limit = min(count, AT_ONCE)
    found = list(islice(pages(address, path, "delayed", limit=limit, partition=partition), count))
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
    print_table(["partition", "due", "message id", "key", "bytes", "receipt"], rows)


@delayed.command()
@TOPIC
@click.argument("receipts", metavar="[RECEIPT]...", nargs=-1)
@click.option(
    "--message-id", "message_ids", multiple=True, help="Cancel by message id; repeatable."
)
@HTTP
@AS_JSON
def cancel(
    topic: str, receipts: tuple[str, ...], message_ids: tuple[str, ...], address: str, as_json: bool
) -> None:
    """Cancel records, by the receipts that `list` shows or by message id."""
    if not receipts and not message_ids:
        raise CommandFailed(
            "nothing to cancel was named: nothing was changed",
            "Name receipts, as `headrace delayed list` shows them, or --message-id",
            USAGE,
        )
    body = {"receipts": [*receipts], "message_ids": [*message_ids]}
    results = call(address, "POST", path_of("topics", topic, "delayed", "cancel"), body)["results"]
    if as_json:
        print_json(results)
    else:
        print_table(
            ["record", "cancelled", "error"],
            [
                [one.get("receipt") or one["message_id"], one["cancelled"], one.get("error")]
                for one in results
            ],
        )
    missed = sum(not one["cancelled"] for one in results)
    if missed:
        raise CommandFailed(
            f"{missed} of {len(results)} were not cancelled: they do not wait any more",
            "See what waits: headrace delayed list TOPIC",
            NOT_FOUND,
        )
