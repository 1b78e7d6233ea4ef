"""`headrace topic copy`: copies the records of a topic into another one, exactly once.

Invariants: the end is determined before reading begins, so a copy of a busy topic terminates. Its
progress is that of a consumer group of its own, committed in the transactions that write the
copies: an interrupted copy continues, and a complete one leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.lag import committed_offsets
from headrace.cli.output import AS_JSON, counted, print_json, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import (
    POSITION_WORDS,
    Partition,
    PositionSpec,
    PositionType,
    log_bounds,
    resolve,
)
from headrace.cli.transfer import SpanMove, begin_transactions, produce_copy
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.client import Client, Message
    from headrace.cli.positions import Bounds
    from headrace.cli.session import CliSession

EARLIEST: Final = PositionSpec("earliest")
LATEST: Final = PositionSpec("latest")


@click.command()
@click.argument("source", type=TOPIC_NAME)
@click.argument("target", type=TOPIC_NAME)
@click.option("--from", "start", type=PositionType(), metavar="POSITION", default=EARLIEST,
              help=f"{POSITION_WORDS}. Default: earliest.")  # fmt: skip
@click.option("--to", "stop", type=PositionType(), metavar="POSITION", default=LATEST,
              help="Where to stop (exclusive). Default: the current end.")  # fmt: skip
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Copy each record to the partition with the same number. Default: its key decides.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Records per second.")
@click.option("--dry-run", is_flag=True, help="Count the records without copying them.")
@AS_JSON
@click.pass_obj
def copy(session: CliSession, /, source: str, target: str, **options: Any) -> None:
    """Copy the records of SOURCE into the topic TARGET, which must exist.

    Keys, values, headers and timestamps stay as they are. If the copy is interrupted, the same
    command continues it without duplicates.

    \b
    Examples:
      headrace topic copy orders orders-test --from 1h --dry-run
      headrace topic copy orders orders-wide --rate 5000
      headrace topic copy orders orders-copy --keep-partitions --to 2013-01-31T12:00
    """
    if source == target:
        raise click.UsageError("SOURCE and TARGET are the same topic: nothing was copied.")
    numbers, held = session.partitions_of(source), session.partitions_of(target)
    if options["keep_partitions"] and len(held) < len(numbers):
        raise CommandFailed(
            f"{target} has {len(held)} partitions, {source} {len(numbers)}: records cannot keep"
            " theirs; nothing was copied",
            f"Add partitions: headrace topic alter {target} --partitions {len(numbers)}; or omit"
            " --keep-partitions",
            NOT_FOUND,
        )
    bounds = log_bounds(session, [Partition(source, number) for number in numbers])
    group = f"headrace-copy.{source}.{target}"
    count, is_continued = _copy(session, (source, target, group), bounds, options)
    facts = {"source": source, "target": target, "records": count,
             "dry_run": options["dry_run"], "continued": is_continued}  # fmt: skip
    if options["as_json"]:
        print_json(facts)
        return
    done = "would be copied (dry run: nothing was changed)" if options["dry_run"] else "copied"
    after = ", after an earlier copy that was interrupted" if is_continued else ""
    tell(f"{counted(count, 'record')} of {source} {done} to {target}{after}")


def _copy(
    session: CliSession,
    names: tuple[str, str, str],
    bounds: dict[Partition, Bounds],
    options: dict[str, Any],
) -> tuple[int, bool]:
    """The number of records, and whether an interrupted copy was continued."""
    source, target, group = names
    producer: Client | None = None
    if not options["dry_run"]:
        producer = session.producer(
            {"transactional.id": group, "partitioner": "murmur2_random", "linger.ms": 5}
        )
        begin_transactions(session, producer, group)
    committed = committed_offsets(session, group)
    starts = resolve(session, options["start"], bounds)
    starts = {p: max(start, committed.get(p, 0)) for p, start in starts.items()}
    stops = resolve(session, options["stop"], bounds)
    move = SpanMove(
        group,
        source,
        {p.number: start for p, start in starts.items()},
        {p.number: stops[p] for p in bounds if starts[p] < stops[p]},
        f"copy {source}",
        "copy of this topic",
        "copy records",
    )
    if producer is None:
        return move.left, bool(committed)
    is_kept = options["keep_partitions"]

    def send(message: Message) -> None:
        number = message.partition() if is_kept else -1
        produce_copy(producer, target, message, number, list(message.headers() or []))

    no_reset = {"auto.offset.reset": "error"}
    count = move.run(session, producer, send, rate_per_s=options["rate"], consumer_config=no_reset)
    _forget(session, group)
    return count, bool(committed)


def _forget(session: CliSession, group: str) -> None:
    """Delete the group that holds the progress. Raises CommandFailed."""
    futures = session.admin().delete_consumer_groups([group], request_timeout=session.timeout_s)
    try:
        session.answer(
            futures[group],
            f"delete group {group!r}, which held the progress",
            Right("delete", "group", group),
        )
    except CommandFailed as failure:
        if failure.exit_code != NOT_FOUND:  # nothing was copied
            raise
