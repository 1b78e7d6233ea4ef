"""`headrace backlog`: list, skip and move what groups have not read yet.

Invariants: supports consumer groups and share groups. A consumer group's lag counts from its
committed offset; a share group's lag counts the records that are not finished. A group with members
is never moved.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.backlog_move import move
from headrace.cli.backlog_park import park, parked, unpark
from headrace.cli.backlog_probe import probe
from headrace.cli.client import kafka
from headrace.cli.group_listing import list_groups, type_of
from headrace.cli.group_reset import DRY_RUN, NUMBERS, TOPICS, move_group, reset
from headrace.cli.lag import first_unread, lag_of, progress
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, counted, print_json, print_table, say
from headrace.cli.parameters import TOPIC_NAME, CommandGroup, number_option
from headrace.cli.positions import (
    Bounds,
    Partition,
    PositionSpec,
    log_bounds,
)
from headrace.cli.transfer import UNTIL_ENDS, messages_until

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

LATEST: Final = PositionSpec("latest")
GROUP = click.argument("group", type=GROUP_NAME)


class Lag(NamedTuple):
    """A group's lag on one partition; None if it is unknown."""

    group: str
    type: str
    topic: str
    partition: int
    offset: int | None
    lag: int | None
    lag_s: float | None


@click.group(cls=CommandGroup)
def backlog() -> None:
    """List, reset, skip, move and measure what groups have not read yet.

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


for command in (reset, move, park, parked, unpark, probe):
    backlog.add_command(command)


@backlog.command("list")
@click.argument("groups", nargs=-1, type=GROUP_NAME)
@click.option("--all", "is_all", is_flag=True, help="Include partitions without a backlog.")
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, groups: tuple[str, ...], is_all: bool, as_json: bool) -> None:
    """Show lag in messages and seconds, by group and partition.

    The lag in seconds is the age of the first unread record. Default: all groups.
    """
    types = {one.group: one.type for one in list_groups(session)}
    for group in groups:
        if group not in types:
            raise session.no_group(group, types)
    lags = [lag for group in groups or types for lag in _lags(session, group, types[group])]
    shown = [lag for lag in lags if is_all or lag.lag != 0]
    if as_json:
        print_json([lag._asdict() for lag in shown])
        return
    columns = ["group", "type", "topic", "partition", "offset", "lag (messages)", "lag (seconds)"]
    print_table(columns, shown, empty="no group has unread messages")
    left = sum(lag.lag or 0 for lag in lags)
    if left == 0:
        return
    oldest_s = max((lag.lag_s or 0.0 for lag in lags), default=0.0)
    say(f"{counted(left, 'message')} left, the oldest {oldest_s:,.1f} s old")


def _lags(session: CliSession, group: str, kind: str) -> list[Lag]:
    return [
        Lag(group, kind, one.topic, one.partition, one.committed, one.lag, one.lag_s)
        for one in lag_of(session, group, kind)
    ]


# --- keys ------------------------------------------------------------------------------------


@backlog.command()
@GROUP
@click.argument("topic", type=TOPIC_NAME)
@click.option("--count", "-n", type=click.IntRange(min=1), default=10, show_default=True)
@number_option("--sample", 100_000, 1, "Maximum number of records to examine.")
@AS_JSON
@click.pass_obj
def keys(session: CliSession, /, group: str, topic: str, **options: Any) -> None:
    """Show the keys with the most records in a backlog.

    In a group with key order, a hot key limits throughput, because its records are delivered one
    at a time. For a share group, all records after its start offset are counted, including
    finished ones.
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
    say(f"{total:,} records of {len(seen):,} keys were examined")


def _sampled(
    session: CliSession,
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
    consumer = session.consumer(
        {"group.id": "headrace-cli", "enable.auto.commit": False, **UNTIL_ENDS}
    )
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


def _all_of(session: CliSession, topic: str) -> list[Partition]:
    return [Partition(topic, number) for number in session.partitions_of(topic)]


def _progress(session: CliSession, group: str) -> dict[Partition, int]:
    """Return the positions of a group of any type. Raises CommandFailed if it does not exist."""
    kind = type_of(session, group)
    if kind is None:
        raise session.no_group(group)
    return progress(session, group, kind)


# --- skip --------------------------------------------------------------------------


@backlog.command()
@GROUP
@TOPICS
@NUMBERS
@DRY_RUN
@AS_JSON
@click.pass_obj
def skip(session: CliSession, /, group: str, **options: Any) -> None:
    """Skip everything that a group has not read. Its consumers must be stopped.

    The records stay in the topic; `headrace backlog reset` can return to them.
    """
    move_group(session, group, LATEST, None, options)
