"""`headrace top`: what happens in the cluster, refreshed: topics by rate, groups by lag.

Invariants: reads only; each refresh asks for end offsets and for the offsets of at most GROUPS_MAX
groups. Rates are those between two refreshes.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.failures import CommandFailed
from headrace.cli.group_listing import GroupListed, list_groups
from headrace.cli.lag import progress
from headrace.cli.output import as_written, cell_text, counted, duration_text, iso_time
from headrace.cli.parameters import number_option
from headrace.cli.positions import Partition, log_bounds
from headrace.cli.topic_names import is_internal, matching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from headrace.cli.session import CliSession

GROUPS_MAX: Final = 200
"""Groups whose offsets are asked for; `group list --lag` shows all."""
HEAD_LINES: Final = 6
"""Of the screen, that are not rows: the title, and each table's heading."""


class Sample(NamedTuple):
    """What one refresh has found."""

    at_s: float
    ends: dict[Partition, int]
    offsets: dict[str, dict[Partition, int]]
    """By group."""
    groups: list[GroupListed]
    brokers: int


@click.command()
@click.argument("patterns", nargs=-1)
@number_option("--every", 2.0, 0.2, "Time between two refreshes.", metavar="SECONDS")
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after this many refreshes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line per refresh.")
@click.pass_obj
def top(session: CliSession, /, patterns: tuple[str, ...], **options: Any) -> None:
    """Show rates and lag of topics and groups, refreshed; Ctrl-C stops.

    With a PATTERN such as 'orders-*', only these topics, and the groups that read them.

    \b
    Examples:
      headrace top
      headrace top 'orders-*' --every 5
      headrace top --json --count 10
    """
    with ExitStack() as stack:
        try:
            show = _shown(stack, as_json=options["as_json"], is_endless=options["count"] is None)
            for number, facts in enumerate(_refreshed(session, patterns, options["every"]), 1):
                show(facts)
                if number == options["count"]:
                    break
        except KeyboardInterrupt:
            pass  # the way to stop


def _refreshed(
    session: CliSession, patterns: tuple[str, ...], every_s: float
) -> Iterator[dict[str, Any]]:
    before: Sample | None = None
    while True:
        found = _sample(session, patterns)
        yield facts_of(before, found)
        before = found
        time.sleep(max(every_s - (time.monotonic() - found.at_s), 0.0))


def _sample(session: CliSession, patterns: tuple[str, ...]) -> Sample:
    at_s = time.monotonic()
    metadata = session.cluster_metadata()
    names = matching((name for name in metadata.topics if not is_internal(name)), patterns)
    wanted = [
        Partition(name, number) for name in names for number in metadata.topics[name].partitions
    ]
    ends = {p: bounds.latest for p, bounds in log_bounds(session, wanted).items()}
    groups = list_groups(session)
    offsets: dict[str, dict[Partition, int]] = {}
    for one in groups[:GROUPS_MAX]:
        try:
            found = progress(session, one.group, one.type)
        except CommandFailed:
            continue  # deleted meanwhile, or its coordinator moves: the next refresh tells
        offsets[one.group] = {p: offset for p, offset in found.items() if p in ends}
    return Sample(at_s, ends, offsets, groups, len(metadata.brokers))


def facts_of(before: Sample | None, now: Sample) -> dict[str, Any]:
    """The facts of one refresh; rates are null in the first one. Pure."""
    seconds = 0.0 if before is None else now.at_s - before.at_s

    def rate(was: dict[Partition, int], found: dict[Partition, int]) -> float | None:
        if seconds <= 0:
            return None
        moved = sum(end - was[p] for p, end in found.items() if p in was)
        return round(max(moved, 0) / seconds, 1)

    topics: dict[str, dict[Partition, int]] = {}
    for p, end in now.ends.items():
        topics.setdefault(p.topic, {})[p] = end
    types = {one.group: one for one in now.groups}
    groups: list[dict[str, Any]] = []
    for name, offsets in now.offsets.items():
        if not offsets:
            continue
        lag = sum(max(now.ends[p] - offset, 0) for p, offset in offsets.items())
        done = rate({} if before is None else before.offsets.get(name, {}), offsets)
        new = rate({} if before is None else before.ends, {p: now.ends[p] for p in offsets})
        groups.append(
            {
                "group": name,
                "type": types[name].type,
                "state": types[name].state,
                "lag": lag,
                "read_per_s": done,
                "empty_in_s": _empty_in_s(lag, done, new),
            }
        )
    return {
        "time": iso_time(time.time_ns() // 1_000_000),
        "brokers": now.brokers,
        "topics": sorted(
            (
                {
                    "topic": name,
                    "partitions": len(ends),
                    "written_per_s": rate({} if before is None else before.ends, ends),
                    "end_offsets": sum(ends.values()),
                }
                for name, ends in topics.items()
            ),
            key=lambda row: (-(row["written_per_s"] or 0), row["topic"]),
        ),
        "groups": sorted(groups, key=lambda row: (-row["lag"], row["group"])),
        "groups_not_asked": max(len(now.groups) - GROUPS_MAX, 0),
    }


def _empty_in_s(lag: int, done: float | None, new: float | None) -> float | None:
    """When the group will have read all at these rates; None: unknown, or never."""
    if not lag:
        return 0.0
    if done is None or new is None or done <= new:
        return None
    return round(lag / (done - new), 1)


# --- output ----------------------------------------------------------------------------------


def _shown(stack: ExitStack, *, as_json: bool, is_endless: bool) -> Any:
    """What shows the facts of a refresh: on the alternate screen; with --count, on the terminal,
    where the last refresh stays; or as lines."""
    if as_json or not sys.stdout.isatty():
        return lambda facts: click.echo(json.dumps(as_written(facts)))
    from rich.console import Console
    from rich.live import Live

    live = stack.enter_context(Live(console=Console(), screen=is_endless, auto_refresh=False))
    return lambda facts: live.update(_screen(facts), refresh=True)


def _screen(facts: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = max((shutil.get_terminal_size().lines - HEAD_LINES - 4) // 2, 1)
    title = (
        f"{facts['time']}  {counted(facts['brokers'], 'broker')},"
        f" {counted(len(facts['topics']), 'topic')},"
        f" {counted(len(facts['groups']), 'group')}  (Ctrl-C stops)"
    )
    topics = [
        (row["topic"], row["partitions"], row["written_per_s"], row["end_offsets"])
        for row in facts["topics"]
    ]
    groups = [
        (row["group"], row["state"], row["lag"], row["read_per_s"], _forecast(row))
        for row in facts["groups"]
    ]
    return Group(
        Text(title, no_wrap=True, overflow="ellipsis"),
        _table(("topic", "partitions", "written/s", "end offsets"), topics, rows),
        _table(("group", "state", "lag", "read/s", "empty in"), groups, rows),
    )


def _forecast(row: dict[str, Any]) -> str | None:
    if row["read_per_s"] is None:
        return None
    return "never" if row["empty_in_s"] is None else duration_text(row["empty_in_s"])


def _table(columns: tuple[str, ...], rows: list[Any], rows_max: int) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=True)
    for number, name in enumerate(columns):
        table.add_column(
            name, justify="right" if number else "left", no_wrap=True, overflow="ellipsis",
            ratio=2 if not number else 1,
        )  # fmt: skip
    for row in rows[:rows_max]:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    if len(rows) > rows_max:
        table.add_row(Text(f"and {len(rows) - rows_max:,} more", style="dim"))
    return table
