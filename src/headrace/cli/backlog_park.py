"""`headrace backlog park`, `parked`, `unpark`: keys whose messages a share group sets aside.

Invariants: over HTTP; every broker that serves a part of the topic is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_groups, complete_topics
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, say
from headrace.cli.web import HTTP, ask_each, path_of, require_all

if TYPE_CHECKING:
    from headrace.cli.session import Session

GROUP = click.argument("group", shell_complete=complete_groups)
TOPIC = click.argument("topic", shell_complete=complete_topics)
KEYS = click.argument("keys", metavar="KEY...", nargs=-1, required=True)


@click.command()
@GROUP
@TOPIC
@KEYS
@HTTP
@click.pass_obj
def park(session: Session, /, group: str, topic: str, keys: tuple[str, ...], http: str) -> None:
    """Set the messages of keys aside; a group in key order goes on with all other keys.

    A message that is in flight is finished as usual. The messages stay where they are, in order.
    """
    path = f"{path_of('queues', topic, group)}/park"
    answers = [*ask_each(http, session.timeout_s, "POST", path, {"keys": [*keys]})]
    require_all(answers, f"the keys are not parked on all of {topic}")
    say(f"{len(keys):,} keys are parked: release them with `headrace backlog unpark`")


@click.command()
@GROUP
@TOPIC
@HTTP
@AS_JSON
@click.pass_obj
def parked(session: Session, /, group: str, topic: str, http: str, as_json: bool) -> None:
    """List parked keys and how many of their messages are known."""
    path = f"{path_of('queues', topic, group)}/parked"
    answers = [*ask_each(http, session.timeout_s, "GET", path)]
    found = [one for answer in answers for one in answer["parked"]]
    if as_json:
        print_json(found)
    else:
        rows = [[one["key"], one["partition"], one["records"], iso_time(one["parked_ms"])]
                for one in found]  # fmt: skip
        print_table(["key", "partition", "messages", "since"], rows)
    require_all(answers, "keys that are parked there are not listed")


@click.command()
@GROUP
@TOPIC
@KEYS
@HTTP
@click.pass_obj
def unpark(session: Session, /, group: str, topic: str, keys: tuple[str, ...], http: str) -> None:
    """Deliver the messages of parked keys again, each key from where it stood."""
    path = f"{path_of('queues', topic, group)}/unpark"
    answers = [*ask_each(http, session.timeout_s, "POST", path, {"keys": [*keys]})]
    released = len({key for answer in answers for key in answer["keys"]})
    say(f"{released:,} of {len({*keys}):,} keys were released")
    require_all(answers, f"keys may still be parked on a part of {topic}")
    if not released:
        raise CommandFailed(
            f"none of these keys is parked by {group} on {topic}",
            f"See which are: headrace backlog parked {group} {topic}",
            NOT_FOUND,
        )
