"""`headrace backlog move`: moves a group's backlog to another topic.

Invariants: a consumer group's records are copied in transactions that also commit the group's
offsets, so each record is moved once, however often the command is interrupted and restarted. A
share group's records are received through the group, and acknowledged once their copies are
durable: an interruption between the two duplicates some. Both stop at the topic's end offsets at
the start of the command.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import FAILED, NOT_FOUND, USAGE, CommandFailed
from headrace.cli.group_listing import SHARE, type_of
from headrace.cli.group_reset import refuse_active
from headrace.cli.inert import refuse_inert
from headrace.cli.lag import committed_offsets, first_unread
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, print_json, say, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.positions import Bounds, Partition, log_bounds
from headrace.cli.progress import counting
from headrace.cli.refusals import refusal
from headrace.cli.share_offsets import share_starts
from headrace.cli.transfer import (
    SpanMove,
    Throttle,
    begin_transactions,
    produce_copy,
)
from headrace.cli.web import HTTP, Web, path_of, require_none_failed
from headrace.records.tenant_names import written_topic

if TYPE_CHECKING:
    from headrace.cli.client import Client, Message
    from headrace.cli.session import CliSession
    from headrace.records.attributes import Headers

RECEIVED_MAX: Final = 500
LOCK_MS: Final = 60_000
WAIT_MS: Final = 500
PARTITIONER: Final = "murmur2_random"
"""The partitioner of Kafka's own clients."""


@click.command()
@click.argument("group", type=GROUP_NAME)
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--to",
    "target",
    metavar="TOPIC",
    required=True,
    type=TOPIC_NAME,
    help="The topic to move them to, which must exist.",
)
@click.option("--rate", type=click.FloatRange(min=0.1), help="Maximum records per second.")
@click.option("--dry-run", is_flag=True, help="Count the records; change nothing.")
@HTTP
@AS_JSON
@click.pass_obj
def move(session: CliSession, /, group: str, topic: str, **options: Any) -> None:
    """Move the records of TOPIC that GROUP has not read to another topic.

    GROUP continues after them. The key decides the partition in the other topic, so the order of
    each key is kept. The command can be interrupted and restarted. A consumer group must have no
    members; a share group may have members.
    """
    if options["dry_run"]:
        refuse_inert("with --dry-run", "rate")
    target = options["target"]
    if target == topic:
        raise CommandFailed(
            "source and target topic are the same", "Specify another one with --to", USAGE
        )
    kind = type_of(session, group)
    if kind is None:
        raise session.no_group(group)
    try:
        session.partitions_of(target)
    except CommandFailed as error:
        if error.exit_code == NOT_FOUND:
            raise CommandFailed(
                f"the target topic {target!r} does not exist; nothing was moved",
                f"Create it first: headrace topic create {target}",
                NOT_FOUND,
            ) from None
        raise
    partitions = [Partition(topic, number) for number in session.partitions_of(topic)]
    bounds = log_bounds(session, partitions)
    if kind == SHARE:
        moved = _move_share(session, group, topic, bounds, options)
    else:
        moved = _move_consumer(session, group, topic, bounds, options)
    if options["as_json"]:
        print_json({"group": group, "to": target, "dry_run": options["dry_run"], "records": moved})
        return
    would = "would be" if options["dry_run"] else "were"
    tell(f"{moved:,} records {would} moved from {written_topic(topic)} to {written_topic(target)}")


# --- consumer groups -------------------------------------------------------------------------


def _move_consumer(
    session: CliSession,
    group: str,
    topic: str,
    bounds: dict[Partition, Bounds],
    options: dict[str, Any],
) -> int:
    producer: Client | None = None
    if not options["dry_run"]:
        # It ends an interrupted run's open transaction, so that the offsets committed by it count.
        name = f"headrace-backlog.{group}.{topic}"
        producer = session.producer({"transactional.id": name, "partitioner": PARTITIONER})
        begin_transactions(session, producer, name)
    refuse_active(session, group)
    committed = committed_offsets(session, group)
    starts = {p: first_unread(committed.get(p), b) for p, b in bounds.items()}
    move = SpanMove(
        group,
        topic,
        {p.number: start for p, start in starts.items()},
        {p.number: b.latest for p, b in bounds.items() if starts[p] < b.latest},
        f"move {topic}",
        "move of this backlog",
        "move a backlog",
    )
    if producer is None:
        return move.left

    def copy(message: Message) -> None:
        headers = list(message.headers() or [])
        produce_copy(producer, options["target"], message, -1, headers)

    return move.run(session, producer, copy, rate_per_s=options["rate"])


# --- share groups ----------------------------------------------------------------------------


def _move_share(
    session: CliSession,
    group: str,
    topic: str,
    bounds: dict[Partition, Bounds],
    options: dict[str, Any],
) -> int:
    starts = share_starts(session, group)
    left = sum(max(start.lag, 0) for p, start in starts.items() if p.topic == topic)
    if options["dry_run"] or not left:
        return left
    path = path_of("queues", topic, group)
    producer = session.producer({"acks": "all", "enable.idempotence": True,
                                 "partitioner": PARTITIONER})  # fmt: skip
    moved, throttle = 0, Throttle(options["rate"])
    # A partition that was added since has no end offset and is skipped: its records are newer.
    ends = [{"partition": p.number, "offset": b.latest} for p, b in bounds.items()]
    asked = {"max": RECEIVED_MAX, "wait_ms": WAIT_MS, "lock_ms": LOCK_MS, "ends": ends}
    again = 0
    web = Web(session)
    with counting(f"move {topic}", left) as show_done:
        while True:
            answer = web.ask("POST", f"{path}/receive", asked, wait_s=WAIT_MS / 1000)
            found = answer["messages"]
            if not found:
                break
            _copy(session, producer, found, options["target"])
            acks = {"ack": [one["receipt"] for one in found]}
            results = web.ask("POST", f"{path}/settle", acks)["results"]
            done = sum(one["ok"] for one in results)
            if not done:
                raise _not_acknowledged(results[0])
            again += len(found) - done
            moved += done
            show_done(done)
            throttle.wait(len(found))
    _report_remaining(group, left - moved, again)
    require_none_failed(answer, "their unread records were not moved")
    return moved


def _not_acknowledged(result: dict[str, Any]) -> CommandFailed:
    return CommandFailed(
        f"copied records could not be acknowledged: {result['error']}",
        "They remain in the group. Restarting the move copies them a second time",
        FAILED,
    )


def _report_remaining(group: str, left: int, again: int) -> None:
    if again:
        say(f"{again:,} records may have been copied twice: they could not be acknowledged in time")
    if left > 0:
        say(
            f"{left:,} records were not moved: consumers of {group} hold them, or they await"
            f" redelivery. Repeat the move later; see: headrace backlog list {group}"
        )


def _copy(
    session: CliSession, producer: Client, messages: list[dict[str, Any]], target: str
) -> None:
    """Send copies and wait until they are durable. Raises CommandFailed."""
    errors: list[Any] = []

    def report(error: Any, _message: Any, headers: Headers) -> None:
        if error is not None:
            errors.append((error, headers))

    for message in messages:
        headers = [_header(item) for item in message["headers"]]
        producer.produce(
            target,
            value=_data(message, "value"),
            key=_data(message, "key"),
            headers=headers,
            timestamp=max(message["timestamp_ms"], 0),
            on_delivery=partial(report, headers=headers),
        )
        producer.poll(0)
    if producer.flush(session.timeout_s) or errors:
        if errors:
            error, headers = errors[0]
            raise refusal(session, error, f"write to {target!r}", target, headers)
        raise CommandFailed(
            f"copies to {target!r} were not acknowledged in time: these records remain in the"
            " group",
            "Repeat the move with a longer --timeout; some records may be copied twice",
            FAILED,
        )


def _header(item: list[str | None]) -> tuple[str, bytes | None]:
    name, value = str(item[0]), item[1]
    if value is None:
        return name, None
    return name, base64.b64decode(value) if len(item) == 3 else value.encode()


def _data(message: dict[str, Any], name: str) -> bytes | None:
    text = message[name]
    if text is None:
        return None
    if message.get(f"{name}_encoding") == "base64":
        return base64.b64decode(text)
    return str(text).encode()
