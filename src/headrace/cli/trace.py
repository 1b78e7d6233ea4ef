"""`headrace trace`: the history of a message, step by step.

Invariants: uses HTTP; any broker traces a message through all of them. Unknown parts are reported.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.output import AS_JSON, Cell, iso_time, print_json, print_table, say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

TIME_MS: Final = 30_000
LAST: Final = 2**63
"""The current state comes last."""
PLACE: Final = ("event", "at_ms", "topic", "partition", "offset")


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.argument("message", metavar="ID|PARTITION:OFFSET")
@HTTP
@AS_JSON
@click.pass_obj
def trace(session: CliSession, /, topic: str, message: str, as_json: bool) -> None:
    """Show the history of a message: stored, delayed, delivered, acknowledged, redriven.

    Identify it by its headrace-message-id, or by partition and offset.

    \b
    Examples:
      headrace trace orders order-17
      headrace trace orders 2:1745 --json
    """
    number, is_place, offset = message.partition(":")
    query: dict[str, Any] = {"message_id": message}
    if is_place and number.isdigit() and offset.isdigit():
        query = {"partition": number, "offset": offset}
    found = _ask(session, topic, query | {"time_ms": TIME_MS})
    if as_json:
        print_json(found)
    elif found["events"]:
        rows = [_row(event) for event in found["events"]]
        print_table(["time", "event", "place", "group", "attempt", "details"], rows)
        for parent in found["traceparents"]:
            say(f"traceparent: {parent}")
        for one in found["unknown"]:
            say(f"unknown: {one}")
    if not found["is_complete"]:
        say("the trace is incomplete: a broker is unreachable, or the time limit was reached")
    if not found["events"]:
        step = "Check the id; messages deleted by retention have no trace"
        if found["tables"]:
            where = [f"--partition={number}", f"--offset={offset}"]
            named = where if "offset" in query else [f"--id={message}"]
            table = f"--table={found['tables'][0]['table']}"
            command = shlex.join(["headrace", "find", topic, *named, table])
            step = f"Look in the table of the topic: {command} --warehouse WAREHOUSE"
        raise CommandFailed(f"no trace of {message} in {topic}", step, NOT_FOUND)


def _ask(session: CliSession, topic: str, query: dict[str, Any]) -> dict[str, Any]:
    """The trace of all pages. Raises CommandFailed."""
    total: dict[str, Any] = {
        "events": [], "messages": [], "traceparents": [], "unknown": [], "tables": [],
        "is_complete": True,
    }  # fmt: skip
    path = path_of("topics", topic, "trace")
    for answer in Web(session).ask_pages("GET", path, query=query, wait_s=TIME_MS / 1000):
        total["events"] += answer["events"]
        total["messages"] += answer["messages"]
        for name in ("traceparents", "unknown", "tables"):
            total[name] += [one for one in answer.get(name, ()) if one not in total[name]]
        total["is_complete"] = total["is_complete"] and answer["is_complete"]
    total["events"].sort(key=lambda event: event.get("at_ms", LAST))
    return total


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return iso_time(value) if name.endswith("_ms") else str(value)


def _row(event: dict[str, Any]) -> list[Cell]:
    place = f"{event['topic']}-{event['partition']}"
    if "offset" in event:
        place += f":{event['offset']}"
    details = [
        f"{name.removesuffix('_ms')} {_text(name, value)}"
        for name, value in event.items()
        if name not in {*PLACE, "group", "attempt"}
    ]
    at_ms = event.get("at_ms")
    moment = None if at_ms is None else iso_time(at_ms)
    group, attempt = event.get("group"), event.get("attempt")
    return [moment, event["event"], place, group, attempt, ", ".join(details)]
