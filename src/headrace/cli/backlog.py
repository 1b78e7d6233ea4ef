"""`headrace backlog`: what groups have not read yet; look at it, skip it, move it.

Invariants: consumer groups and share groups alike. The lag of a consumer group is counted from its
committed offset; that of a share group counts the records that are not finished. A group is never
moved while it has members.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.backlog_move import move
from headrace.cli.backlog_park import park, parked, unpark
from headrace.cli.backlog_probe import probe
from headrace.cli.client import kafka
from headrace.cli.completion import complete_groups, complete_topics
from headrace.cli.failures import no_group
from headrace.cli.group_reset import Move, commit_moves, refuse_active
from headrace.cli.lag import ages_s, committed_offsets, first_unread, group_lag
from headrace.cli.output import Cell, print_json, print_table, say
from headrace.cli.positions import (
    POSITION_WORDS,
    Bounds,
    Partition,
    Position,
    PositionType,
    log_bounds,
    resolve,
)
from headrace.cli.share_offsets import SHARE, groups_by_type, move_share_group, share_starts
from headrace.cli.transfer import messages_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.session import Session

LATEST: Final = Position("latest")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
GROUP = click.argument("group", shell_complete=complete_groups)
TOPICS = click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Default: every topic in which the group has progress.",
)
NUMBERS = click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


class Lag(NamedTuple):
    """What one group has left on one partition; None where it is unknown."""

    group: str
    type: str
    topic: str
    partition: int
    offset: int | None
    lag: int | None
    lag_s: float | None


@click.group()
def backlog() -> None:
    """What groups have not read yet: list, keys, reset, skip, move, park, probe.

    \b
    Examples:
      headrace backlog list
      headrace backlog keys workers orders --count 5
      headrace backlog reset workers --to 2013-01-31T12:00:00.250 --dry-run
      headrace backlog skip workers --topic orders
      headrace backlog move workers orders --to orders.later --rate 1000
      headrace backlog park workers orders customer-7
      headrace backlog probe orders --count 20
    """


for command in (move, park, parked, unpark, probe):
    backlog.add_command(command)


@backlog.command("list")
@click.argument("groups", nargs=-1, shell_complete=complete_groups)
@click.option("--all", "is_all", is_flag=True, help="Also partitions without a backlog.")
@AS_JSON
@click.pass_obj
def list_(session: Session, /, groups: tuple[str, ...], is_all: bool, as_json: bool) -> None:
    """Show lag in messages and seconds, by group and partition.

    Seconds are the age of the first record that is not read. Without GROUPS: all.
    """
    types = groups_by_type(session)
    for group in groups:
        if group not in types:
            raise no_group(group)
    lags = [lag for group in groups or types for lag in _lags(session, group, types[group])]
    shown = [lag for lag in lags if is_all or lag.lag != 0]
    if as_json:
        print_json([lag._asdict() for lag in shown])
        return
    columns = ["group", "type", "topic", "partition", "offset", "lag (messages)", "lag (seconds)"]
    print_table(columns, shown)
    left = sum(lag.lag or 0 for lag in lags)
    oldest_s = max((lag.lag_s or 0.0 for lag in lags), default=0.0)
    say(f"{left:,} messages left, the oldest {oldest_s:,.1f} s old")


def _lags(session: Session, group: str, kind: str) -> list[Lag]:
    if kind != SHARE:
        return [
            Lag(group, kind, one.topic, one.partition, one.committed, one.lag, one.lag_s)
            for one in group_lag(session, group, {})
        ]
    starts = share_starts(session, group)
    ages = ages_s(session, {p: start.offset for p, start in starts.items() if start.lag != 0})
    return [
        Lag(
            group,
            kind,
            partition.topic,
            partition.number,
            start.offset,
            start.lag if start.lag >= 0 else None,
            ages.get(partition) if start.lag else 0.0,
        )
        for partition, start in starts.items()
    ]


# --- keys ------------------------------------------------------------------------------------


@backlog.command()
@GROUP
@click.argument("topic", shell_complete=complete_topics)
@click.option("--count", "-n", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--sample", type=click.IntRange(min=1), default=100_000, show_default=True,
              help="Records to look at, at most.")  # fmt: skip
@AS_JSON
@click.pass_obj
def keys(session: Session, /, group: str, topic: str, **options: Any) -> None:
    """Show the keys with the most records in a backlog.

    In key order a hot key is what holds a group up: its records come one at a time. Of a share
    group all records after its start are counted, finished ones among them.
    """
    starts = {p: at for p, at in _progress(session, group).items() if p.topic == topic}
    bounds = log_bounds(session, sorted(starts) or _all_of(session, topic))
    seen: Counter[bytes | None] = Counter()
    for message in _sampled(session, topic, starts, bounds, options["sample"]):
        seen[message.key()] += 1
    total = seen.total()
    rows: list[dict[str, Any]] = [
        {"key": None if key is None else key.decode("utf-8", "backslashreplace"), "records": count}
        for key, count in seen.most_common(options["count"])
    ]
    if options["as_json"]:
        print_json({"records": total, "keys": len(seen), "hottest": rows})
        return
    table = [[row["key"], row["records"], row["records"] * 100.0 / total] for row in rows]
    print_table(["key", "records", "percent"], table)
    say(f"{total:,} records of {len(seen):,} keys were looked at")


def _sampled(
    session: Session,
    topic: str,
    starts: dict[Partition, int],
    bounds: dict[Partition, Bounds],
    count_max: int,
) -> list[Any]:
    library = kafka()
    places = {p: first_unread(starts.get(p), b) for p, b in bounds.items()}
    ends = {p.number: b.latest for p, b in bounds.items() if places[p] < b.latest}
    found: list[Any] = []
    if not ends:
        return found
    consumer = session.consumer({"group.id": "headrace-cli", "enable.auto.commit": False})
    try:
        consumer.assign(
            [library.TopicPartition(topic, p.number, at) for p, at in places.items()
             if p.number in ends]
        )  # fmt: skip
        for bundle in messages_until(consumer, ends):
            found += bundle
            if len(found) >= count_max:
                break
    finally:
        consumer.close()
    return found[:count_max]


def _all_of(session: Session, topic: str) -> list[Partition]:
    return [Partition(topic, number) for number in session.partitions_of(topic)]


def _progress(session: Session, group: str) -> dict[Partition, int]:
    """Where a group of any type stands. Raises CommandFailed where there is none."""
    kind = groups_by_type(session).get(group)
    if kind is None:
        raise no_group(group)
    if kind == SHARE:
        return {p: start.offset for p, start in share_starts(session, group).items()}
    return committed_offsets(session, group)


# --- reset and skip --------------------------------------------------------------------------


@backlog.command()
@GROUP
@TOPICS
@NUMBERS
@click.option("--to", "target", type=PositionType(), metavar="POSITION", required=True,
              help=f"{POSITION_WORDS}; times to the millisecond.")  # fmt: skip
@DRY_RUN
@AS_JSON
@click.pass_obj
def reset(session: Session, /, group: str, target: Position, **options: Any) -> None:
    """Move a group of either kind to a position. Its consumers must be stopped.

    Of a share group, what is in flight is forgotten, and delivered again if it lies after POSITION.
    """
    _reset(session, group, target, options)


@backlog.command()
@GROUP
@TOPICS
@NUMBERS
@DRY_RUN
@AS_JSON
@click.pass_obj
def skip(session: Session, /, group: str, **options: Any) -> None:
    """Skip all that a group has not read. Its consumers must be stopped.

    The records stay in the topic: `headrace backlog reset` goes back to them.
    """
    _reset(session, group, LATEST, options)


def _reset(session: Session, group: str, target: Position, options: dict[str, Any]) -> None:
    kind = groups_by_type(session).get(group)
    if kind not in {None, SHARE}:
        refuse_active(session, group)
    before = _progress(session, group)
    wanted = _wanted(session, before, options["topics"], options["numbers"])
    bounds = log_bounds(session, wanted)
    after = resolve(session, target, bounds)
    moves = [
        Move(p, before.get(p), after[p], after[p] - first_unread(before.get(p), b))
        for p, b in sorted(bounds.items())
    ]
    if not options["dry_run"] and kind == SHARE:
        move_share_group(session, group, after)
    elif not options["dry_run"]:
        commit_moves(session, group, moves)
    _show_moves(group, moves, options)


def _wanted(
    session: Session,
    before: dict[Partition, int],
    topics: Sequence[str],
    numbers: Sequence[int],
) -> list[Partition]:
    found = [p for topic in topics for p in _all_of(session, topic)] if topics else sorted(before)
    return [p for p in found if not numbers or p.number in numbers]


def _show_moves(group: str, moves: list[Move], options: dict[str, Any]) -> None:
    if options["as_json"]:
        documents = [one.document() for one in moves]
        print_json({"group": group, "dry_run": options["dry_run"], "partitions": documents})
        return
    rows: list[list[Cell]] = [
        [one.partition.topic, one.partition.number, one.before, one.after, one.delta]
        for one in moves
    ]
    print_table(["topic", "partition", "before", "after", "delta"], rows)
    again = -sum(one.delta for one in moves if one.delta < 0)
    skipped = sum(one.delta for one in moves if one.delta > 0)
    note = " (dry run: nothing was changed)" if options["dry_run"] else ""
    say(f"{group}: {again:,} records to be read again, {skipped:,} skipped{note}")
