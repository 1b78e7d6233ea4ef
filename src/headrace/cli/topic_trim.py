"""`headrace topic trim`: deletes the oldest records of a topic (Kafka's DeleteRecords).

Invariants: shows the number of records by partition before it asks, and after it has deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.client import kafka
from headrace.cli.output import AS_JSON, confirm, counted, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import (
    POSITION_WORDS,
    Partition,
    PositionType,
    log_bounds,
    resolve,
)
from headrace.records.tenant_names import written_topic
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


@click.command()
@click.argument("name", metavar="TOPIC", type=TOPIC_NAME)
@click.option(
    "--before",
    type=PositionType(),
    required=True,
    metavar="POSITION",
    help=f"Delete what lies before it: {POSITION_WORDS}.",
)
@click.option(
    "--partition",
    "-p",
    "numbers",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def trim(session: CliSession, /, name: str, **options: Any) -> None:
    """Delete the oldest records of TOPIC. Asks first; without a terminal, use --yes.

    \b
    Examples:
      headrace topic trim orders --before 7d --dry-run
      headrace topic trim orders --before 1200 -p 2 --yes
      headrace topic trim orders --before latest        # all records; the topic stays
    """
    found = session.chosen_partitions([name], options["numbers"])[name]
    bounds = log_bounds(session, [Partition(name, number) for number in found])
    ends = resolve(session, options["before"], bounds)
    rows = [
        {"partition": p.number, "earliest": b.earliest, "to": ends[p], "latest": b.latest,
         "deleted": ends[p] - b.earliest}
        for p, b in bounds.items()
    ]  # fmt: skip
    count = sum(row["deleted"] for row in rows)
    if not options["as_json"]:
        print_table([*rows[0]], [[*row.values()] for row in rows])
    if not options["dry_run"] and count:
        confirm(
            f"Delete {counted(count, 'record')} of {written_topic(name)}?", is_sure=options["yes"]
        )
        delete_before(session, ends)
    if options["as_json"]:
        print_json({"topic": name, "dry_run": options["dry_run"], "deleted": count,
                    "partitions": rows})  # fmt: skip
        return
    would = "would be deleted (dry run: nothing was changed)" if options["dry_run"] else "deleted"
    tell(f"{written_topic(name)}: {counted(count, 'record')} {would}")


def delete_before(session: CliSession, ends: dict[Partition, int]) -> None:
    """Delete the records before these offsets; -1: all. Raises CommandFailed."""
    asked = [kafka().TopicPartition(p.topic, p.number, end) for p, end in ends.items()]
    futures = session.admin().delete_records(asked, request_timeout=session.timeout_s)
    for part, future in futures.items():
        session.answer(
            future,
            f"delete records of {part.topic}-{part.partition}",
            Right("delete", "topic", part.topic),
        )
