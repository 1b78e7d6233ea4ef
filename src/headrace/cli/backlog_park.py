"""`headrace backlog park`, `parked`, `unpark`: keys whose messages a share group sets aside.

Invariants: uses HTTP; any broker answers for the whole topic. A command fails if its response lists
partitions whose brokers did not respond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say, say_dry_run
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.web import DRY_RUN, HTTP, PAGE_ITEMS_MAX, Web, path_of, require_none_failed

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

GROUP = click.argument("group", type=GROUP_NAME)
TOPIC = click.argument("topic", type=TOPIC_NAME)
KEYS = click.argument("keys", metavar="KEY...", nargs=-1, required=True)


@click.command()
@GROUP
@TOPIC
@KEYS
@DRY_RUN
@HTTP
@click.pass_obj
def park(
    session: CliSession, /, group: str, topic: str, keys: tuple[str, ...], *, dry_run: bool
) -> None:
    """Set the messages of keys aside; a group with key order continues with the other keys.

    A message in flight is finished as usual. The messages stay in the topic, in order.
    """
    path = path_of("queues", topic, group, "park", dry_run=dry_run)
    answer = Web(session).ask("POST", path, {"keys": [*keys]})
    require_none_failed(answer, f"the keys are not parked on all of {topic}")
    if dry_run:
        say(f"{answer['parked']:,} keys would be parked, with {answer['records']:,} messages known")
        say_dry_run(dry_run=True)
        return
    say(f"{len(keys):,} keys parked; release them with `headrace backlog unpark`")


@click.command()
@GROUP
@TOPIC
@HTTP
@AS_JSON
@click.pass_obj
def parked(session: CliSession, /, group: str, topic: str, as_json: bool) -> None:
    """List parked keys and the known number of their messages."""
    path = f"{path_of('queues', topic, group)}/parked"
    web = Web(session)
    answers = list(web.ask_pages("GET", path, query={"limit": PAGE_ITEMS_MAX}))
    found = [one for answer in answers for one in answer["parked"]]
    if as_json:
        print_json(found)
    else:
        rows = [[one["key"], one["partition"], one["records"], iso_time(one["parked_ms"])]
                for one in found]  # fmt: skip
        columns = ["key", "partition", "messages", "since"]
        empty = f"no keys are parked: headrace backlog park {group} {topic} KEY sets one aside"
        print_table(columns, rows, empty=empty)
    require_none_failed(answers[-1], "their parked keys are not listed")


@click.command()
@GROUP
@TOPIC
@KEYS
@DRY_RUN
@HTTP
@click.pass_obj
def unpark(
    session: CliSession, /, group: str, topic: str, keys: tuple[str, ...], *, dry_run: bool
) -> None:
    """Resume delivery of parked keys, each from where it stopped."""
    path = path_of("queues", topic, group, "unpark", dry_run=dry_run)
    answer = Web(session).ask("POST", path, {"keys": [*keys]})
    released = answer["released"]
    known = f", with {answer['records']:,} messages known" if dry_run else ""
    would = "would be" if dry_run else "were"
    say(f"{released:,} of {len({*keys}):,} keys {would} released{known}")
    say_dry_run(dry_run=dry_run)
    require_none_failed(answer, f"keys may still be parked on a part of {topic}")
    if not released:
        raise CommandFailed(
            f"none of these keys is parked by {group} on {topic}",
            f"List parked keys: headrace backlog parked {group} {topic}",
            NOT_FOUND,
        )
