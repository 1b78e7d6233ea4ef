"""`headrace find`: where a message is, and what became of it.

Invariants: over HTTP, page by page, so that a broker holds no more than one page. A broker searches
what it serves and names the brokers that serve the rest, which are asked in turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

from headrace.cli.completion import complete_topics
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.output import Cell, iso_time, print_json, print_table, say
from headrace.cli.positions import TimeType
from headrace.cli.queue import Milliseconds
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import Session

PAGE_TIME_MS: Final = 2_000
VALUE_LENGTH: Final = 60


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--id", "message_id", metavar="ID", help="The header headrace-message-id.")
@click.option("--key", "-k", help="The record's key, or a word in headrace-keys.")
@click.option("--tag", help="The header headrace-tag.")
@click.option("--header", metavar="NAME=VALUE", help="Any header.")
@click.option("--since", type=TimeType(), metavar="TIME", help="ISO 8601, or an age: 15m, 2h.")
@click.option("--until", type=TimeType(), metavar="TIME", help="The same; exclusive.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Of this partition alone.")
@click.option("--count", "-n", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--time-limit", type=Milliseconds(), default="60s", show_default=True)
@HTTP
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def find(session: Session, /, topic: str, **options: Any) -> None:
    """Find messages of TOPIC, wherever they are.

    Searches the log, delayed and half messages, and the dead letter topics of its share groups, and
    says what became of each message in each share group.

    \b
    Examples:
      headrace find orders --id order-17
      headrace find orders --key customer-7 --since 2h --json
      headrace find orders --tag vip --header region=eu --until 2013-01-31T12:00:00
    """
    names = ("message_id", "key", "tag", "header", "partition")
    query = {name: options[name] for name in names if options[name] is not None}
    times = (("since_ms", options["since"]), ("until_ms", options["until"]))
    query |= {name: at for name, at in times if at is not None}
    found = find_all(session, options["http"], topic, query, options)
    if options["as_json"]:
        print_json(found)
    else:
        columns = ["state", "place", "time", "id", "key", "value"]
        print_table(columns, [_row(one) for one in found["messages"]])
        searched = found["searched"]
        say(f"{len(found['messages']):,} found, {searched['records']:,} records searched")
    if not found["is_complete"]:
        say(f"not everything was searched: {found['reason']}")
    if not found["messages"]:
        raise CommandFailed(
            f"no message of {topic} matches" + ("" if found["is_complete"] else " so far"),
            "Look in another range (--since, --until), or raise --time-limit"
            if not found["is_complete"]
            else "Check the id, key or tag; expired and purged messages are not found",
            NOT_FOUND,
        )


def find_all(
    session: Session, address: str, topic: str, query: dict[str, Any], limits: dict[str, Any]
) -> dict[str, Any]:
    """The messages that all brokers find, up to a count and a time. Raises CommandFailed."""
    deadline_s = time.monotonic() + limits["time_limit"] / 1000
    total: dict[str, Any] = {
        "messages": [], "is_complete": True, "searched": {"records": 0, "bytes": 0}
    }  # fmt: skip
    asked: set[int] = set()
    left = {-1: address}
    unserved: set[int] = set()
    while left:
        number = next(iter(left))
        web, given = Web(left.pop(number), session.timeout_s), dict(query)
        while True:
            room = limits["count"] - len(total["messages"])
            rest_ms = int((deadline_s - time.monotonic()) * 1000)
            if room <= 0 or rest_ms <= 0:
                reason = "--count was reached" if room <= 0 else "--time-limit was reached"
                return total | {"is_complete": False, "reason": reason}
            given |= {"limit": min(room, 1_000), "time_ms": min(rest_ms, PAGE_TIME_MS)}
            path = f"{path_of('topics', topic, 'messages')}?{urlencode(given)}"
            answer = web.ask("GET", path, wait_s=PAGE_TIME_MS / 1000)
            total["messages"] += answer["messages"]
            for name in ("records", "bytes"):
                total["searched"][name] += answer["searched"][name]
            if answer["is_complete"]:
                break
            given["page_token"] = answer["next_page_token"]
        asked.add(answer["broker"])
        for other in answer["elsewhere"]:
            if "broker" not in other:
                unserved.add(other["partition"])
            elif other["broker"]["id"] not in asked:
                left[other["broker"]["id"]] = other["broker"]["http"]
    if unserved:
        reason = f"no broker serves the partitions {sorted(unserved)} at the moment"
        return total | {"is_complete": False, "reason": reason}
    return total


def _row(one: dict[str, Any]) -> list[Cell]:
    groups = ", ".join(f"{group['group']}: {group['state']}" for group in one.get("groups", ()))
    state = groups or one["state"]
    if one["state"] == "delayed":
        state = f"delayed until {iso_time(one['due_ms'])}"
    if one["state"] == "dead":
        state = f"dead letter: {one['origin'].get('message', '')}"
    place = f"{one['topic']}-{one['partition']}"
    if "offset" in one:
        place += f":{one['offset']}"
    headers = {header[0]: header[1] for header in one["headers"]}
    value = one["value"]
    shown = None if value is None else value[:VALUE_LENGTH]
    message_id = headers.get("headrace-message-id")
    return [state, place, iso_time(one["timestamp_ms"]), message_id, one["key"], shown]
