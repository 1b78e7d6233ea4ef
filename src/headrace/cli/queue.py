"""`headrace queue`: receives and settles messages of a share group, and watches the group.

Invariants: uses the broker's HTTP interface, whose receipts identify single deliveries, so a
message received by one call can be settled by another.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import FAILED, USAGE, CommandFailed
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, Cell, counted, iso_time, print_json, print_table, say
from headrace.cli.pairs import parse_duration_ms
from headrace.cli.parameters import TOPIC_NAME, CommandGroup
from headrace.cli.share_offsets import without_dead_letters
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

RECEIPTS_MAX: Final = 10_000
"""Of one way to settle in one request: more are settled by further requests."""
WAIT_MS_MAX: Final = 60_000
"""Of one request: longer waits are further requests."""
TOPIC = click.argument("topic", type=TOPIC_NAME)
GROUP = click.argument("group", type=GROUP_NAME)


class Milliseconds(click.ParamType[int]):
    """A click type for durations: 500ms, 30s, 15m, 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click.ParamType."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(cls=CommandGroup)
def queue() -> None:
    """Receive and settle individual messages of share groups.

    \b
    Examples:
      headrace queue receive orders workers --max 10 --wait 20s
      headrace queue receive orders workers --ack --json
      headrace queue settle orders workers --ack RECEIPT --nack RECEIPT --delay 5s
      headrace queue watch orders workers
      headrace queue journal orders --partition 0
    """


@queue.command()
@TOPIC
@GROUP
@click.option("--max", "-n", "count", type=click.IntRange(1, 1_000), default=10, show_default=True)
@click.option(
    "--wait",
    type=Milliseconds(),
    default="0s",
    help="Time to wait for the first message, e.g. 20s.",
)
@click.option("--lock", type=Milliseconds(), help="Lock duration. Default: the group's.")
@click.option("--ack", is_flag=True, help="Acknowledge the messages after printing them.")
@HTTP
@AS_JSON
@click.pass_obj
def receive(session: CliSession, /, topic: str, group: str, **options: Any) -> None:
    """Receive messages; they are locked until you settle them or the lock expires."""
    web = Web(session)
    body = {"max": options["count"]}
    if options["lock"] is not None:
        body["lock_ms"] = options["lock"]
    path = path_of("queues", topic, group)
    messages = _receive(web, f"{path}/receive", body, options["wait"])
    if options["as_json"]:
        print_json(messages)
    else:
        columns = ["receipt", "partition", "offset", "deliveries", "key", "value"]
        print_table(columns, [[message[column] for column in columns] for message in messages])
        say(counted(len(messages), "message"))
        if not messages:
            say(
                "What was sent before the group's first receive is not delivered: to begin there,"
                f" headrace backlog reset {group} --topic {topic} --to earliest"
            )
    sys.stdout.flush()
    if options["ack"] and messages:
        body = {"ack": [message["receipt"] for message in messages]}
        _report(web.ask("POST", f"{path}/settle", body)["results"], as_json=False, is_quiet=True)


def _receive(web: Web, path: str, body: dict[str, int], wait_ms: int) -> list[dict[str, Any]]:
    """The messages of the first request that has some, or none after this time."""
    ends_s = time.monotonic() + wait_ms / 1000
    while True:
        left_ms = max(0, round((ends_s - time.monotonic()) * 1000))
        body["wait_ms"] = min(left_ms, WAIT_MS_MAX)
        answer = web.ask("POST", path, body, wait_s=body["wait_ms"] / 1000)
        messages: list[dict[str, Any]] = answer["messages"]
        if messages or left_ms <= WAIT_MS_MAX:
            return messages


@queue.command()
@TOPIC
@GROUP
@click.option(
    "--ack", multiple=True, metavar="RECEIPT", help="Acknowledge: finished, never delivered again."
)
@click.option("--nack", multiple=True, metavar="RECEIPT", help="Release: deliver it again.")
@click.option(
    "--delay", type=Milliseconds(), help="With --nack: redeliver no earlier than after this."
)
@click.option("--extend", multiple=True, metavar="RECEIPT", help="Extend the lock.")
@click.option("--lock", type=Milliseconds(), help="With --extend: new lock duration.")
@click.option("--dead-letter", multiple=True, metavar="RECEIPT", help="Give it up.")
@click.option("--reason", default="", help="With --dead-letter and --nack: the reason.")
@click.option("--stdin", "is_read", is_flag=True, help="Acknowledge receipts read from stdin.")
@HTTP
@AS_JSON
@click.pass_obj
def settle(session: CliSession, /, topic: str, group: str, **options: Any) -> None:
    """Settle messages by their receipts.

    With --stdin, read receipts one per line, or the JSON output of `receive --json`, and settle
    10,000 in each request.
    """
    for name, users in (
        ("delay", ("nack",)),
        ("lock", ("extend",)),
        ("reason", ("dead_letter", "nack")),
    ):
        if options[name] not in (None, "") and not any(options[one] for one in users):
            needed = " or ".join(f"--{one.replace('_', '-')}" for one in users)
            raise click.UsageError(f"--{name} has no effect without {needed}; nothing was settled.")
    acks = [*options["ack"], *(_read_receipts() if options["is_read"] else ())]
    reason = {"reason": options["reason"]} if options["reason"] else {}
    delay = {} if options["delay"] is None else {"delay_ms": options["delay"]}
    lock = {} if options["lock"] is None else {"lock_ms": options["lock"]}
    body: dict[str, list[Any]] = {
        "ack": acks,
        "nack": [{"receipt": one, **delay, **reason} for one in options["nack"]],
        "extend": [{"receipt": one, **lock} for one in options["extend"]],
        "dead_letter": [{"receipt": one, **reason} for one in options["dead_letter"]],
    }
    body = {name: items for name, items in body.items() if items}
    if not body:
        raise click.UsageError(
            "Specify receipts with --ack, --nack, --extend, --dead-letter or --stdin."
        )
    web, results = Web(session), []
    path = path_of("queues", topic, group) + "/settle"
    try:
        for at in range(0, max(map(len, body.values())), RECEIPTS_MAX):
            part = {name: items[at : at + RECEIPTS_MAX] for name, items in body.items()}
            results += web.ask("POST", path, part)["results"]
    except CommandFailed:
        if results:  # of the first requests, which were carried out
            _report(results, as_json=options["as_json"])
        raise
    _report(results, as_json=options["as_json"])


def _read_receipts() -> list[str]:
    """Raises CommandFailed."""
    text = sys.stdin.read()
    if not text.lstrip().startswith(("[", "{")):
        return text.split()
    try:
        found = json.loads(text)
        messages = found["messages"] if isinstance(found, dict) else found
        return [message["receipt"] for message in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(
            f"stdin is not a list of messages ({error}); nothing was settled",
            "Pipe the output of `headrace queue receive --json`, or one receipt per line",
            USAGE,
        ) from None


def _report(results: list[dict[str, Any]], *, as_json: bool, is_quiet: bool = False) -> None:
    """Raises CommandFailed if a receipt was rejected."""
    refused = [result for result in results if not result["ok"]]
    if as_json:
        print_json(results)
    elif not is_quiet:
        rows: list[list[Cell]] = [[one["receipt"], one["ok"], one.get("error")] for one in results]
        print_table(["receipt", "ok", "error"], rows)
    if refused:
        raise CommandFailed(
            f"{len(refused):,} of {len(results):,} receipts were refused: {refused[0]['error']}",
            "Receive the messages again: they are redelivered unless they were settled",
            FAILED,
        )


@queue.command()
@TOPIC
@GROUP
@click.option("--every", type=Milliseconds(), default="2s", show_default=True)
@click.option("--count", "-n", type=click.IntRange(min=1), help="Stop after this many updates.")
@HTTP
@AS_JSON
@click.pass_obj
def watch(session: CliSession, /, topic: str, group: str, **options: Any) -> None:
    """Show the lag and the messages in flight of a group periodically."""
    web = Web(session)
    looks = 0
    while True:
        answer = web.ask("GET", path_of("queues", topic, group))
        if options["as_json"]:
            click.echo(json.dumps(answer, separators=(",", ":")))
        else:
            _show(answer["partitions"])
            if looks == 0 and answer.get("dead_letter_topic", "") is None:
                say(without_dead_letters(answer["delivery_count_limit"]))
            if failed := answer.get("failed"):
                numbers = ", ".join(str(one["partition"]) for one in failed)
                say(f"Partitions {numbers} are missing: {failed[0]['error']['detail']}")
        sys.stdout.flush()
        looks += 1
        if looks == options["count"]:
            return
        time.sleep(options["every"] / 1000)


def _show(partitions: list[dict[str, Any]]) -> None:
    columns = ["partition", "start_offset", "end_offset", "in_flight", "lag"]
    print_table(columns, [[one[column] for column in columns] for one in partitions])
    lag, flying = (sum(one[name] for one in partitions) for name in ("lag", "in_flight"))
    say(f"{time.strftime('%H:%M:%S')}  {counted(lag, 'message')} behind, {flying:,} in flight")


@queue.command()
@TOPIC
@click.option("--partition", "-p", type=click.IntRange(min=0), required=True)
@HTTP
@AS_JSON
@click.pass_obj
def journal(session: CliSession, /, topic: str, partition: int, as_json: bool) -> None:
    """Show what share groups did with the records of a partition: the changes in its journal.

    Once a journal has been compacted, earlier changes are gone, and the state then comes first.
    """
    path = path_of("topics", topic, "journal", str(partition))
    pages = [*Web(session).ask_pages("GET", path, query={})]
    changes = [one for page in pages for one in page["changes"]]
    if as_json:
        print_json({"changes": changes, "first_position": pages[0]["first_position"]})
        return
    rows: list[list[Cell]] = [
        [iso_time(one["at_ms"]), one["group"], one["event"], one["first"], one["last"],
         one["deliveries"]]
        for one in changes
    ]  # fmt: skip
    columns = ["time", "group", "event", "first", "last", "deliveries"]
    print_table(columns, rows, empty=f"no share group has changed anything in {topic} {partition}")
