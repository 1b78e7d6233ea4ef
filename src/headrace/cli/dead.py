"""`headrace dead`: lists, shows, edits, redrives, takes back and deletes dead letters.

Invariants: letters of share groups (KIP-1191), Spring and Connect are read alike; an edited letter
is shown as it will be sent. Redrives are in `redrive`. Edits and taking back use HTTP, so that they
are in the audit log.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from headrace.cli.client import kafka
from headrace.cli.failures import CONFLICT, USAGE, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import (
    AS_JSON,
    as_written,
    confirm,
    counted,
    print_json,
    print_table,
    say,
    tell,
)
from headrace.cli.parameters import TOPIC_NAME, CommandGroup, number_option
from headrace.cli.positions import Partition, TimeType
from headrace.cli.redrive import (
    LOOP_MAX,
    Outcome,
    Place,
    RedriveOptions,
    headers_of,
    plan_redrive,
    print_line,
    redrive_letters,
    scan,
    unverified,
)
from headrace.cli.topic_trim import delete_before
from headrace.cli.web import HTTP, Web, path_of
from headrace.http.records import as_text
from headrace.records.letters import Letter, letter_of
from headrace.records.tenant_names import name_in, written_topic

if TYPE_CHECKING:
    from headrace.cli.client import Message
    from headrace.cli.session import CliSession

TAKEN_AT_ONCE: Final = 500
TOPIC = click.argument("topic", metavar="DEAD_LETTER_TOPIC", type=TOPIC_NAME)


class LetterPlace(click.ParamType[Place]):
    """PARTITION:OFFSET of a letter."""

    name = "PARTITION:OFFSET"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Parse it."""
        number, colon, offset = str(value).partition(":")
        if not (colon and number.isdecimal() and offset.isdecimal() and len(offset) < 20):
            self.fail(f"{value!r} is not a place such as 0:17", param, ctx)
        return int(number), int(offset)


PLACE: Final = LetterPlace()


@click.group(cls=CommandGroup)
def dead() -> None:
    """List, show, edit, redrive and purge dead letters.

    \b
    Examples:
      headrace dead topics
      headrace dead list orders.dead
      headrace dead show orders.dead --count 5
      headrace dead redrive orders.dead --dry-run
      headrace dead redrive orders.dead --rate 200 --results sent.jsonl
      headrace dead undo orders.dead sent.jsonl
    """


@dead.command()
@HTTP
@AS_JSON
@click.pass_obj
def topics(session: CliSession, /, as_json: bool) -> None:
    """List the topics that groups name for their dead letters."""
    pages = [*Web(session).ask_pages("GET", path_of("dead-letters"), query={"limit": 1_000})]
    found = [one for page in pages for one in page["topics"]]
    if as_json:
        print_json(found)
        return
    print_table(
        ["topic", "records", "partitions"],
        [[written_topic(one["name"]), one["records"], one["partitions"]] for one in found],
        empty="no group names a topic for dead letters: headrace group set --help",
    )
    for one in pages[-1].get("failed", []):
        say(
            f"{written_topic(one['topic'])}-{one['partition']} is not counted:"
            f" {one['error']['detail']}"
        )


@dead.command("list")
@TOPIC
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, topic: str, as_json: bool) -> None:
    """Count dead letters by origin, group and reason."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for _, content in scan(session, topic):
        letter = letter_of(headers_of(content))
        counts[letter.topic, letter.consumer, letter.reason, letter.format] += 1
    names = ("origin", "group", "reason", "format", "count")
    rows = [(*key, count) for key, count in counts.most_common()]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [[cell or None for cell in row] for row in rows]
    print_table([*names], shown, empty=f"{topic} has no dead letters")
    strangers = sum(count for *_, kind, count in rows if not kind)
    if strangers:
        say(f"without the headers of a dead letter: {counted(strangers, 'record')}")


@dead.command()
@TOPIC
@click.option("--origin", metavar="TOPIC", type=TOPIC_NAME,
              help="Only letters that came from this topic.")  # fmt: skip
@click.option(
    "--group", type=GROUP_NAME, metavar="GROUP", help="Only letters that this group gave up."
)
@click.option("--reason", metavar="TEXT", help="Only letters whose reason contains TEXT.")
@click.option("--since", type=TimeType(), metavar="TIME", help="ISO 8601, or an age: 15m, 2h.")
@click.option("--until", type=TimeType(), metavar="TIME", help="As --since; exclusive.")
@click.option("--letter", "place", metavar="PARTITION:OFFSET", type=PLACE, help="Only this letter.")
@click.option("--count", "-n", type=click.IntRange(min=1), default=10, show_default=True)
@AS_JSON
@click.pass_obj
def show(session: CliSession, /, topic: str, count: int, as_json: bool, **wanted: Any) -> None:
    """Show dead letters with their origin and reason.

    \b
    Example:
      headrace dead show orders.dead --reason timeout --since 2h
    """
    found: list[dict[str, Any]] = []
    count = 1 if wanted["place"] else count
    for message, content in scan(session, topic):
        if not _is_wanted(message, **wanted):
            continue
        found.append(
            {
                "partition": message.partition(),
                "offset": message.offset(),
                "key": _text(content.key()),
                "value": _text(content.value()),
                "origin": _origin(letter_of(headers_of(message))),
            }
        )
        if len(found) >= count:
            break
    if as_json:
        print_json(found)
        return
    columns = ["dead letter", "origin", "group", "deliveries", "reason", "key", "value"]
    print_table(columns, [_row(one) for one in found], empty=f"no such dead letters in {topic}")


def _is_wanted(
    message: Message,
    origin: str | None,
    group: str | None,
    reason: str | None,
    since: int | None,
    until: int | None,
    place: tuple[int, int] | None,
) -> bool:
    letter = letter_of(headers_of(message))
    _, time_ms = message.timestamp()
    return (
        (origin is None or name_in(letter.topic) == name_in(origin))
        and (group is None or name_in(letter.consumer) == name_in(group))
        and (reason is None or reason in letter.reason)
        and (since is None or time_ms >= since)
        and (until is None or time_ms < until)
        and place in {None, (message.partition(), message.offset())}
    )


def _origin(letter: Letter) -> dict[str, str]:
    numbers = (letter.partition, letter.offset, letter.deliveries)
    partition, offset, deliveries = ("" if one < 0 else str(one) for one in numbers)
    return {
        "topic": letter.topic,
        "partition": partition,
        "offset": offset,
        "group": letter.consumer,
        "deliveries": deliveries,
        "message": letter.reason,
        "format": letter.format,
    }


def as_content(data: bytes, name: str) -> dict[str, str]:
    """A field of a record for HTTP: text where it is UTF-8, else base64."""
    shown, is_text = as_text(data)
    found = {name: str(shown)}
    return found if is_text else {**found, f"{name}_encoding": "base64"}


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


# --- edit ------------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.argument("place", metavar="PARTITION:OFFSET", type=PLACE)
@click.option("--value", help="The new value.")
@click.option("--value-file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="The new value is this file's content.")  # fmt: skip
@click.option("--key", help="The new key.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True,
              help="Replace the record's own headers by these.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the change; store nothing.")
@HTTP
@AS_JSON
@click.pass_obj
def edit(
    session: CliSession,
    /,
    topic: str,
    place: Place,
    value: str | None,
    value_file: Path | None,
    key: str | None,
    headers: tuple[str, ...],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change a dead letter before it is sent back.

    The letter itself stays in the log: an edited copy takes its place, which says who changed what.
    The message that is sent back has the header headrace-edited.

    \b
    Examples:
      headrace dead edit orders.dead 0:17 --value '{"customer": 4}'
      headrace dead edit orders.dead 0:17 --value-file mended.json --dry-run
    """
    body: dict[str, Any] = {"partition": place[0], "offset": place[1]}
    if value is not None and value_file is not None:
        raise CommandFailed("--value and --value-file exclude each other", "Give one", USAGE)
    if value is not None:
        body["value"] = value
    elif value_file is not None:
        body |= as_content(value_file.read_bytes(), "value")
    if key is not None:
        body["key"] = key
    if headers:
        body["headers"] = [list(one.partition("=")[::2]) for one in headers]
    path = path_of("dead-letters", topic, "edits", dry_run=dry_run)
    answer = Web(session).ask("POST", path, body)
    if as_json:
        print_json(answer)
        return
    would = "would change" if dry_run else "changed"
    tell(f"{would} {', '.join(answer['changed'])} of the letter at {place[0]}:{place[1]}")


# --- redrive ---------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.option("--to", "target", metavar="TOPIC", type=TOPIC_NAME,
              help="Default: the topic that each record came from.")  # fmt: skip
@click.option(
    "--group", type=GROUP_NAME, metavar="GROUP", help="Only records that this group gave up."
)
@click.option("--reason", metavar="TEXT", help="Only records whose reason contains TEXT.")
@click.option("--letter", "places", metavar="PARTITION:OFFSET", multiple=True, type=PLACE,
              help="Only this letter; repeatable.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0.1), help="Maximum records per second.")
@number_option("--loop-max", LOOP_MAX, 1, "Keep letters that were sent back so often already.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False, writable=True),
              help="Write what became of each letter to this new file, as JSON lines.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count the records; change nothing.")
@AS_JSON
@click.option("--lines", is_flag=True, help="Print JSON lines: progress, letters, the result.")
@click.pass_obj
def redrive(
    session: CliSession, /, topic: str, *, dry_run: bool, as_json: bool, lines: bool, **options: Any
) -> None:
    """Send dead letters back, each exactly once and in order.

    The command can be interrupted and restarted. Records excluded by --group, --reason or --letter
    are appended to the dead letter topic again, as are records that cannot be sent (without an
    origin, or sent back too often): these are listed, and the command exits with a failure.
    """
    if lines:
        refuse_inert("with --lines", "as_json")
    if dry_run:
        refuse_inert("with --dry-run", "rate")
    results = options.pop("results")
    options["places"] = frozenset(options["places"])
    wanted, outcome = RedriveOptions(**options), Outcome()
    if results is not None:
        said = {"dry_run": True} if dry_run else {}
        with _new_file(results) as file:
            outcome.note = lambda row: print(
                json.dumps(as_written(row | said)), file=file, flush=True
            )
            _run(session, topic, wanted, outcome, dry_run=dry_run, lines=False)
    else:
        _run(session, topic, wanted, outcome, dry_run=dry_run, lines=lines)
    result = outcome.shown(is_dry_run=dry_run)
    if lines:
        print_line(result)  # which says what failed
        return
    if as_json:
        print_json(result)
    else:
        _print_outcome(outcome, is_dry_run=dry_run)
    if outcome.failed_count:
        would = "would be" if dry_run else "were"
        raise CommandFailed(
            f"{outcome.failed_count:,} records of {topic} cannot be sent"
            f" ({outcome.failed[0]['error']}): they {would} kept, the others {would} sent",
            "See the errors; redrive letters without an origin with --to TOPIC",
        )


def _new_file(path: Path) -> TextIO:
    """A file that is written for the first time. Raises CommandFailed."""
    try:
        return path.open("x")
    except FileExistsError:
        raise CommandFailed(
            f"{path} exists, and may be what `headrace dead undo` needs; nothing was sent",
            "Give another name with --results, or remove the file",
            USAGE,
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"{path} cannot be written ({error.strerror}); nothing was sent",
            "Give another name with --results",
            USAGE,
        ) from None


def _run(
    session: CliSession,
    topic: str,
    wanted: RedriveOptions,
    outcome: Outcome,
    *,
    dry_run: bool,
    lines: bool,
) -> None:
    if dry_run:
        plan_redrive(session, topic, wanted, outcome)
    elif not lines:
        redrive_letters(session, topic, wanted, outcome)
    else:
        outcome.note = print_line

        def note_done(done: int, total: int) -> None:
            print_line({"done": done, "total": total, "kept": outcome.kept})

        redrive_letters(session, topic, wanted, outcome, note_done)


def _print_outcome(outcome: Outcome, *, is_dry_run: bool) -> None:
    total = sum(outcome.sent.values())
    would = "would be" if is_dry_run else "was" if total == 1 else "were"
    if outcome.sent:
        print_table(["topic", "records"], sorted(outcome.sent.items()))
    if outcome.failed:
        print_table(["dead letter", "error"], [[*one.values()] for one in outcome.failed])
    edited = f", {outcome.edited:,} of them edited" if outcome.edited else ""
    tell(f"{counted(total, 'dead letter')} {would} sent back{edited}, {outcome.kept:,} kept")
    if outcome.unsure:
        say(unverified(outcome.unsure))


# --- undo ------------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.argument("results", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Say what could be taken back; change nothing.")
@HTTP
@AS_JSON
@click.pass_obj
def undo(session: CliSession, /, topic: str, results: str, *, dry_run: bool, as_json: bool) -> None:
    """Take back what a redrive has sent and no consumer has seen.

    RESULTS is what `redrive --results` has written (- for standard input). A message is taken back
    if share groups alone consume its topic and none has received it: it is finished in each of
    them, and is a dead letter again. Each other one is listed with the reason.

    \b
    Example:
      headrace dead redrive orders.dead --results sent.jsonl
      headrace dead undo orders.dead sent.jsonl
    """
    with click.open_file(results) as file:
        rows_in = [_sent_row(line) for line in file if line.strip()]
    sent = [one for one in rows_in if one is not None]
    web, found = Web(session), list[dict[str, Any]]()
    path = path_of("dead-letters", topic, "take-back", dry_run=dry_run)
    for at in range(0, len(sent), TAKEN_AT_ONCE):
        answer = web.ask("POST", path, {"sent": sent[at : at + TAKEN_AT_ONCE]})
        found += answer["results"]
    if as_json:
        print_json(found)
    else:
        rows = [[one["letter"], one["to"], "yes" if one["taken_back"] else "no", _why(one)]
                for one in found]  # fmt: skip
        print_table(["dead letter", "sent to", "taken back", "reason"], rows)
    missed = sum(not one["taken_back"] for one in found)
    if missed:
        raise CommandFailed(
            f"{missed:,} of {len(found):,} messages {'cannot be' if dry_run else 'were not'} taken"
            " back",
            "They stay where they were sent: see the reasons",
            CONFLICT,
        )


def _sent_row(line: str) -> dict[str, str] | None:
    """The letter of one line, None if it was not sent. Raises CommandFailed."""
    try:
        row = json.loads(line)
        if row.get("outcome") != "sent":
            return None
        if row.get("dry_run"):
            raise CommandFailed(
                "the file is of a dry run, which sent nothing; nothing was changed",
                "Give the file of the redrive that is to be undone",
                USAGE,
            )
        return {"letter": str(row["letter"]), "to": str(row["to"])}
    except (ValueError, KeyError, AttributeError):
        raise CommandFailed(
            "the file is not what `headrace dead redrive --results` writes; nothing was changed",
            "Give the file of the redrive that is to be undone",
            USAGE,
        ) from None


def _why(one: dict[str, Any]) -> str:
    return str(one.get("reason") or one.get("error", {}).get("detail", ""))


# --- purge -----------------------------------------------------------------------------------


@dead.command()
@TOPIC
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def purge(session: CliSession, /, topic: str, yes: bool, as_json: bool) -> None:
    """Delete all current dead letters. Asks first; without a terminal, use --yes."""
    numbers = session.partitions_of(topic)
    confirm(f"Delete all records of {written_topic(topic)}?", is_sure=yes)
    end = kafka().OFFSET_END
    delete_before(session, {Partition(topic, number): end for number in numbers})
    if as_json:
        print_json({"topic": topic, "partitions": numbers})
    else:
        tell(f"purged {written_topic(topic)}")
