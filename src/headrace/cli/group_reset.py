"""`headrace group reset`: changes a group's offsets.

Invariants: prints the offsets before and after in a table, with the number of records that will be
read again or skipped. An active group is rejected, a share group by its coordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from headrace.cli.client import kafka
from headrace.cli.failures import CONFLICT, NOT_FOUND, CommandFailed
from headrace.cli.group_listing import SHARE, STREAMS, type_of
from headrace.cli.group_past import WHY, past_offsets
from headrace.cli.lag import describe_groups, first_unread, progress, state_of
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, counted, print_json, print_table, say, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import (
    POSITION_WORDS,
    Bounds,
    Partition,
    PositionSpec,
    PositionType,
    TimeType,
    log_bounds,
    resolve,
)
from headrace.cli.share_offsets import move_share_group
from headrace.cli.streams_groups import streams_group
from headrace.cli.web import HTTP
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

TOPICS = click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    type=TOPIC_NAME,
    help="Default: every topic in which the group has offsets.",
)
NUMBERS = click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
_QUIET_STATES = {"Empty", "Dead", "Unknown"}


class OffsetChange(NamedTuple):
    """One partition's offsets, before and after."""

    partition: Partition
    before: int | None
    after: int
    delta: int  # records read again (below 0) or skipped (above)

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "before": self.before,
            "after": self.after,
            "delta": self.delta,
        }


@click.command()
@click.argument("name", metavar="GROUP", type=GROUP_NAME)
@TOPICS
@NUMBERS
@click.option("--to", "target", type=PositionType(), metavar="POSITION", help=POSITION_WORDS)
@click.option("--shift-by", type=int, metavar="N", help="Move by N records; backwards if negative.")
@click.option(
    "--as-of",
    "as_of_ms",
    type=TimeType(),
    metavar="TIME",
    help="To what GROUP had committed in TOPIC then, where that is known (headrace group past).",
)
@DRY_RUN
@HTTP
@AS_JSON
@click.pass_obj
def reset(session: CliSession, /, name: str, **options: Any) -> None:
    """Reset the offsets of GROUP. Its consumers must be stopped.

    Works for every type of group. For a share group, records in flight are discarded, and
    redelivered if they are after POSITION.

    \b
    Examples:
      headrace group reset billing --to earliest --dry-run
      headrace group reset billing --topic orders -p 2 --to 1200
      headrace group reset billing --to 2013-01-31T12:00
      headrace group reset billing --to 2h           # records of the last two hours
      headrace group reset billing --shift-by -100
      headrace group reset billing --topic orders --as-of 15m --dry-run
    """
    target, shift, as_of_ms = options["target"], options["shift_by"], options["as_of_ms"]
    if [target, shift, as_of_ms].count(None) != 2:
        raise click.UsageError("Specify one of --to POSITION, --shift-by N and --as-of TIME.")
    if as_of_ms is not None:
        _move_back(session, name, as_of_ms, options)
    else:
        move_group(session, name, target, shift, options)


def _move_back(session: CliSession, name: str, at_ms: int, options: dict[str, Any]) -> None:
    """Reset a group to what it had committed at a time. Raises CommandFailed."""
    if not options["topics"]:
        raise click.UsageError("--as-of needs --topic TOPIC.")
    kind = type_of(session, name)
    after: dict[Partition, int] = {}
    for topic in options["topics"]:
        for of in past_offsets(session, topic, at_ms, name)["groups"]:
            for one in of["offsets"]:
                place = Partition(topic, one["partition"])
                if options["numbers"] and place.number not in options["numbers"]:
                    continue
                if one["offset"] is None:
                    say(f"{topic}-{place.number} stays as it is: {WHY[one['state']]}")
                else:
                    after[place] = one["offset"]
    if not after:
        raise CommandFailed(
            f"what group {name!r} had committed at that time is not known, or nothing",
            f"See what is known: headrace group past {options['topics'][0]} --at TIME",
            NOT_FOUND,
        )
    refuse_active(session, name)
    bounds = log_bounds(session, sorted(after))
    within = {p: min(max(after[p], b.earliest), b.latest) for p, b in bounds.items()}
    moves = _changes(progress(session, name, kind), bounds, within)
    apply_moves(session, name, kind, moves, options)


def move_group(
    session: CliSession,
    name: str,
    target: PositionSpec | None,
    shift: int | None,
    options: dict[str, Any],
) -> None:
    """Reset a group of any type, to `target` or by `shift`, and print the result.

    `options`: topics, numbers, dry_run, as_json. Raises CommandFailed.
    """
    kind = type_of(session, name)
    if kind != SHARE:
        refuse_active(session, name)
    before = progress(session, name, kind)
    bounds = log_bounds(session, _partitions(session, name, before, options))
    moves = _moves(session, before, bounds, target, shift)
    apply_moves(session, name, kind, moves, options)


def apply_moves(
    session: CliSession,
    name: str,
    kind: str | None,
    moves: list[OffsetChange],
    options: dict[str, Any],
) -> None:
    """Change a group of this type, unless it is a dry run, and print the changes.

    `options`: dry_run, as_json. Raises CommandFailed.
    """
    is_dry = options["dry_run"]
    if not is_dry:
        if kind == SHARE:
            move_share_group(session, name, {move.partition: move.after for move in moves})
        else:
            commit_moves(session, name, moves)
    if options["as_json"]:
        documents = [move.document() for move in moves]
        print_json({"group": name, "dry_run": is_dry, "partitions": documents})
        return
    print_table(
        ["topic", "partition", "before", "after", "delta"],
        [[m.partition.topic, m.partition.number, m.before, m.after, m.delta] for m in moves],
    )
    again = -sum(m.delta for m in moves if m.delta < 0)
    skipped = sum(m.delta for m in moves if m.delta > 0)
    would = "would be" if is_dry else "is" if again == 1 else "are"
    tell(
        f"{name}: {counted(again, 'record')} {would} read again, {skipped:,} skipped"
        + (" (dry run: nothing was changed)" if is_dry else "")
    )


def refuse_active(session: CliSession, name: str) -> None:
    """Raises CommandFailed if the group has members."""
    if type_of(session, name) == STREAMS:
        described = streams_group(session, name)
        state, count = described.group_state, len(described.members)
    else:
        description = describe_groups(session, [name])[name]
        state, count = state_of(description), len(description.members)
    if state not in _QUIET_STATES:
        raise CommandFailed(
            f"group {name!r} is active ({state}, {count} members): its "
            "consumers would overwrite the change; nothing was changed",
            f"Stop them, check that the group is Empty (headrace group describe {name}), and"
            " try again",
            CONFLICT,
        )


def _partitions(
    session: CliSession, name: str, committed: dict[Partition, int], options: dict[str, Any]
) -> list[Partition]:
    """The partitions to reset: those of the named topics, or all with a committed offset."""
    numbers = set(options["numbers"])
    topics = options["topics"]
    if topics:
        found = [Partition(t, n) for t in topics for n in session.partitions_of(t)]
    else:
        found = sorted(committed)
    wanted = [p for p in found if not numbers or p.number in numbers]
    if not wanted:
        raise CommandFailed(
            f"group {name!r} has no offsets to move"
            if not topics
            else f"no such partition in {', '.join(topics)}",
            "Specify the topic with --topic TOPIC"
            if not topics
            else "List partitions: headrace topic describe",
            NOT_FOUND,
        )
    return wanted


def _moves(
    session: CliSession,
    committed: dict[Partition, int],
    bounds: dict[Partition, Bounds],
    target: PositionSpec | None,
    shift: int | None,
) -> list[OffsetChange]:
    if target is not None:
        after = resolve(session, target, bounds)
    else:
        assert shift is not None
        after = {
            p: min(max(first_unread(committed.get(p), b) + shift, b.earliest), b.latest)
            for p, b in bounds.items()
        }
    return _changes(committed, bounds, after)


def _changes(
    committed: dict[Partition, int], bounds: dict[Partition, Bounds], after: dict[Partition, int]
) -> list[OffsetChange]:
    return [
        OffsetChange(p, committed.get(p), after[p], after[p] - first_unread(committed.get(p), b))
        for p, b in sorted(bounds.items())
    ]


def commit_moves(session: CliSession, name: str, moves: list[OffsetChange]) -> None:
    """Commit the new offsets. Raises CommandFailed."""
    offsets = [
        kafka().TopicPartition(m.partition.topic, m.partition.number, m.after) for m in moves
    ]
    future = session.admin().alter_consumer_group_offsets(
        [kafka().ConsumerGroupTopicPartitions(name, offsets)], request_timeout=session.timeout_s
    )[name]
    answer = session.answer(future, f"move group {name!r}", Right("read", "group", name))
    for partition in answer.topic_partitions or []:
        if partition.error is not None:
            raise CommandFailed(
                f"move group {name!r}: {partition.topic}-{partition.partition}: "
                f"{partition.error.str()}",
                f"See its offsets: headrace group describe {name}",
            )
