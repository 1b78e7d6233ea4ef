"""`headrace dead`: lists, redrives and deletes the dead letters of share groups.

Invariants: a redrive moves records in transactions, together with its own offsets, so each record
is sent once, however often the command is interrupted and restarted. It stops at the dead letter
topic's end offsets at its start, so messages that fail again meanwhile are left for the next
redrive. Records that a filter excludes, or without an origin, are appended to the dead letter topic
again, in the same transaction. The order of each partition and each key is preserved.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.client import kafka
from headrace.cli.completion import complete_topics
from headrace.cli.failures import CommandFailed, from_kafka
from headrace.cli.inert import refuse_inert
from headrace.cli.output import AS_JSON, confirm, print_json, print_table
from headrace.cli.positions import Partition
from headrace.cli.progress import counting
from headrace.cli.topic_trim import delete_before
from headrace.cli.transfer import (
    TransactionalMove,
    begin_transactions,
    messages_until,
    produce_copy,
)
from headrace.http.access import REDRIVE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.client import Client, Message
    from headrace.cli.session import CliSession

PREFIX: Final = "__dlq.errors."
REDRIVES: Final = "headrace-redrives"
PATH: Final = "headrace-dlq-path"
"""Where the record has been: a redrive starts again."""
"""Header that counts how often a record was sent back."""
NAMED_SEQUENCE: Final = ("headrace-producer", "headrace-sequence")
"""They belong to the copy; the transaction of a redrive replaces them."""
FAILED_SHOWN_MAX: Final = 100
NO_ORIGIN: Final = "the record does not name its origin and was kept; redrive it with --to TOPIC"
TOPIC = click.argument("topic", metavar="DEAD_LETTER_TOPIC", shell_complete=complete_topics)


class Letter(NamedTuple):
    """A dead letter's own description of its origin; empty fields if it has none."""

    topic: str
    partition: str
    offset: str
    group: str
    deliveries: str
    message: str

    @classmethod
    def of(cls, message: Message) -> Letter:
        """Parse a record's headers."""
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in _all(message)}
        names = ("topic", "partition", "offset", "group", "delivery.count", "message")
        return cls(*(headers.get(PREFIX + name, "") for name in names))


def _all(message: Message) -> list[tuple[str, bytes | None]]:
    return list(message.headers() or [])


@click.group()
def dead() -> None:
    """List, show, redrive and purge dead letters.

    \b
    Examples:
      headrace dead list orders.dead
      headrace dead show orders.dead --count 5
      headrace dead redrive orders.dead --dry-run
      headrace dead redrive orders.dead --rate 200
    """


@dead.command("list")
@TOPIC
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, topic: str, as_json: bool) -> None:
    """Count dead letters by origin, group and reason."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for message in _scan(session, topic):
        letter = Letter.of(message)
        counts[letter.topic, letter.group, letter.message] += 1
    rows = [(*key, count) for key, count in counts.most_common()]
    if as_json:
        names = ("origin", "group", "reason", "count")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(["origin", "group", "reason", "count"], rows)


@dead.command()
@TOPIC
@click.option("--count", "-n", type=click.IntRange(min=1), default=10, show_default=True)
@AS_JSON
@click.pass_obj
def show(session: CliSession, /, topic: str, count: int, as_json: bool) -> None:
    """Show dead letters with their origin and reason."""
    found: list[dict[str, Any]] = []
    for message in _scan(session, topic):
        found.append(
            {
                "partition": message.partition(),
                "offset": message.offset(),
                "key": _text(message.key()),
                "value": _text(message.value()),
                "origin": Letter.of(message)._asdict(),
            }
        )
        if len(found) >= count:
            break
    if as_json:
        print_json(found)
        return
    columns = ["dead letter", "origin", "group", "deliveries", "reason", "key", "value"]
    print_table(columns, [_row(one) for one in found])


def _row(shown: dict[str, Any]) -> list[str | None]:
    origin = shown["origin"]
    return [
        f"{shown['partition']}:{shown['offset']}",
        f"{origin['topic']}-{origin['partition']}:{origin['offset']}",
        origin["group"],
        origin["deliveries"],
        origin["message"],
        shown["key"],
        shown["value"],
    ]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")[:200]


# --- reading ---------------------------------------------------------------------------------


def _assigned(session: CliSession, topic: str, group: str) -> tuple[Client, dict[int, int]]:
    """Return (a consumer of the whole topic from the group's offsets on, end offset by
    partition)."""
    numbers = session.partitions_of(topic)
    consumer = session.consumer(
        {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
            "auto.offset.reset": "earliest",
        }
    )
    library = kafka()
    parts = [library.TopicPartition(topic, number) for number in numbers]
    try:
        committed = consumer.committed(parts, timeout=session.timeout_s)
        ends: dict[int, int] = {}
        for part in committed:
            low, high = consumer.get_watermark_offsets(part, timeout=session.timeout_s)
            part.offset = max(part.offset, low)
            if part.offset < high:
                ends[part.partition] = high
    except library.KafkaException as error:
        consumer.close()
        raise from_kafka(error.args[0], f"read {topic!r}") from None
    consumer.assign([part for part in committed if part.partition in ends])
    return consumer, ends


def _scan(session: CliSession, topic: str) -> Iterator[Message]:
    """Yield all dead letters that were not sent back yet."""
    consumer, ends = _assigned(session, topic, _group_of(topic))
    try:
        if ends:
            for bundle in messages_until(consumer, ends):
                yield from bundle
    finally:
        consumer.close()


def _group_of(topic: str) -> str:
    """The group with a redrive's offsets."""
    return f"{REDRIVE_PREFIX}{topic}"


# --- redrive ---------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.option(
    "--to", "target", metavar="TOPIC", help="Default: the topic that each record came from."
)
@click.option("--group", metavar="GROUP", help="Only records that this group gave up.")
@click.option("--reason", metavar="TEXT", help="Only records whose reason contains TEXT.")
@click.option("--rate", type=click.FloatRange(min=0.1), help="Maximum records per second.")
@click.option("--dry-run", is_flag=True, help="Count the records; change nothing.")
@AS_JSON
@click.option("--lines", is_flag=True, help="Print JSON lines: progress, then the result.")
@click.pass_obj
def redrive(session: CliSession, /, topic: str, **options: Any) -> None:
    """Send dead letters back, each exactly once and in order.

    The command can be interrupted and restarted. Records excluded by --group or --reason are
    appended to the dead letter topic again, as are records that do not name their origin: these
    are listed, and the command exits with a failure.
    """
    if options["lines"]:
        refuse_inert("with --lines", "as_json")
    if options["dry_run"]:
        refuse_inert("with --dry-run", "rate")
    outcome = _Outcome()
    if options["dry_run"]:
        for message in _scan(session, topic):
            outcome.add([message], [_target(message, options)])
    else:
        _redrive(session, topic, options, outcome)
    result = {"dry_run": options["dry_run"], "sent": dict(outcome.sent), "kept": outcome.kept}
    if outcome.failed_count:
        result |= {"failed": outcome.failed, "failed_count": outcome.failed_count}
    would = "would be" if options["dry_run"] else "were"
    if options["lines"]:
        click.echo(json.dumps(result))
    elif options["as_json"]:
        print_json(result)
    else:
        if outcome.sent:
            print_table(["topic", "records"], sorted(outcome.sent.items()))
        if outcome.failed:
            print_table(["dead letter", "error"], [[*one.values()] for one in outcome.failed])
        total = sum(outcome.sent.values())
        click.echo(f"{total:,} dead letters {would} sent back, {outcome.kept:,} kept")
    if outcome.failed_count:
        raise CommandFailed(
            f"{outcome.failed_count:,} records of {topic} do not name their origin: they"
            f" {would} kept, the others {would} sent",
            "Redrive them with --to TOPIC",
        )


class _Outcome:
    """The result of a redrive."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.kept = 0
        """How many of them have no origin."""
        self.failed: list[dict[str, str]] = []
        self.failed_count = 0

    def add(self, bundle: list[Message], targets: list[str | None]) -> None:
        """Count what was sent, by destination."""
        for message, target in zip(bundle, targets, strict=True):
            if target:
                self.sent[target] += 1
                continue
            self.kept += 1
            if target is not None:
                self.failed_count += 1
                if len(self.failed) < FAILED_SHOWN_MAX:
                    place = f"{message.topic()}-{message.partition()}:{message.offset()}"
                    self.failed.append({"record": place, "error": NO_ORIGIN})

    def check(self, topic: str, targets: list[str | None]) -> None:
        """Raises CommandFailed if nothing shows that `topic` holds dead letters at all."""
        if targets and not any(target != "" for target in targets) and not self.sent:
            raise CommandFailed(
                f"no record at the beginning of {topic} names its origin; nothing was sent",
                "Specify a dead letter topic, or the target topic with --to TOPIC",
            )


def _redrive(session: CliSession, topic: str, options: dict[str, Any], outcome: _Outcome) -> None:
    session.partitions_of(topic)
    producer = session.producer(
        {
            "transactional.id": _group_of(topic),
            "transaction.timeout.ms": 60_000,
            "partitioner": "murmur2_random",
        }
    )
    begin_transactions(session, producer)  # a running redrive can commit no more from here on
    consumer, ends = _assigned(session, topic, _group_of(topic))
    sending = TransactionalMove(
        session, consumer, producer, "redrive of this topic", "send dead letters back"
    )
    try:
        if not ends:
            return
        starts = {p.partition: p.offset for p in consumer.assignment()}
        done = 0
        left = sum(ends[number] - max(start, 0) for number, start in starts.items())
        with counting(f"redrive {topic}", left) as show_done:
            for bundle in messages_until(consumer, ends):
                begun_s = time.monotonic()
                targets = [_target(message, options) for message in bundle]
                outcome.check(topic, targets)
                _send(sending, producer, bundle, targets)
                outcome.add(bundle, targets)
                show_done(len(bundle))
                done += len(bundle)
                if options["lines"]:
                    click.echo(json.dumps({"done": done, "total": left, "kept": outcome.kept}))
                if options["rate"]:
                    rest_s = len(bundle) / options["rate"] - (time.monotonic() - begun_s)
                    time.sleep(max(rest_s, 0.0))
    finally:
        consumer.close()


def _send(
    sending: TransactionalMove,
    producer: Client,
    bundle: list[Message],
    targets: list[str | None],
) -> None:
    """Send one bundle and its offsets in one transaction; `targets`: the destination of each
    record."""
    left = iter(targets)

    def copy(message: Message) -> None:
        target = next(left)
        if not target:
            headers = [item for item in _all(message) if item[0] not in NAMED_SEQUENCE]
            produce_copy(producer, message.topic(), message, message.partition(), headers)
        else:
            origin = Letter.of(message)
            number = int(origin.partition) if _is_origin(origin, target) else -1
            produce_copy(producer, target, message, number, _stripped(message))

    sending.send(bundle, copy)


def _target(message: Message, options: dict[str, Any]) -> str | None:
    """The destination of a dead letter; None: it is kept; empty: it has no origin."""
    letter = Letter.of(message)
    if options["group"] is not None and letter.group != options["group"]:
        return None
    if options["reason"] is not None and options["reason"] not in letter.message:
        return None
    target: str = options["target"] or letter.topic
    return target


def _is_origin(letter: Letter, target: str) -> bool:
    return letter.topic == target and letter.partition.isdigit()


def _stripped(message: Message) -> list[tuple[str, bytes | None]]:
    """The record's own headers, with the updated redrive count."""
    count = 1
    kept: list[tuple[str, bytes | None]] = []
    for name, value in _all(message):
        if name == REDRIVES and value is not None and value.isdigit():
            count = int(value) + 1
        elif not name.startswith(PREFIX) and name not in {*NAMED_SEQUENCE, PATH}:
            kept.append((name, value))
    return [*kept, (REDRIVES, str(count).encode())]


# --- purge -----------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def purge(session: CliSession, /, topic: str, yes: bool, as_json: bool) -> None:
    """Delete all current dead letters. Asks first; without a terminal, use --yes."""
    numbers = session.partitions_of(topic)
    confirm(f"Delete all records of {topic}?", is_sure=yes)
    end = kafka().OFFSET_END
    delete_before(session, {Partition(topic, number): end for number in numbers})
    if as_json:
        print_json({"topic": topic, "partitions": numbers})
    else:
        click.echo(f"purged {topic}")
