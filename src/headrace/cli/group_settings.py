"""`headrace group set`: order, retries and dead letters of a share group.

Invariants: each option is one group setting, which `headrace config --group` shows and changes too.
Brokers validate the values; all of them are changed, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.config_requests import GROUP, SET, Resource, alter
from headrace.cli.duration import Duration
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, VALIDATE_ONLY, print_json, tell
from headrace.cli.parameters import TOPIC_NAME

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
SETTINGS: Final = {
    "ordered": "headrace.share.key.order",
    "attempts": DELIVERY_LIMIT,
    "retry_after": "headrace.share.retry.backoff.ms",
    "dead_letter_topic": DEAD_LETTER_TOPIC,
    "start": "share.auto.offset.reset",
}
"""The setting of each option."""


class _Delays(click.ParamType[str]):
    """Durations with commas between them, as the setting's milliseconds."""

    name = "TIME,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """See click."""
        seconds = [Duration().convert(one.strip(), param, ctx) for one in str(value).split(",")]
        return ",".join(str(round(one * 1_000)) for one in seconds)


@click.command("set")
@click.argument("name", type=GROUP_NAME)
@click.option(
    "--ordered/--unordered",
    default=None,
    help="Deliver messages of one key, or one message group, in order.",
)
@click.option("--attempts", type=click.IntRange(min=1), help="Deliveries of a message at most.")
@click.option(
    "--retry-after",
    type=_Delays(),
    help="Delays before the 2nd, 3rd, ... delivery, e.g. 1s,10s,1m; the last one repeats.",
)
@click.option(
    "--dead-letter-topic",
    metavar="TOPIC",
    type=TOPIC_NAME,
    help="Where messages go after the last attempt.",
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    help="Where the group begins on a topic that it has not consumed.",
)
@VALIDATE_ONLY
@AS_JSON
@click.pass_obj
def set_(session: CliSession, /, name: str, **options: Any) -> None:
    """Set how the share group NAME orders, retries and gives up messages.

    These are the groups of queues and of RocketMQ's simple and push consumers. The group need not
    exist yet. What is not given stays as it is; `headrace config unset` returns to the default.

    \b
    Examples:
      headrace group set billing --attempts 5 --retry-after 1s,10s,1m
      headrace group set billing --ordered --dead-letter-topic dlq.billing
      headrace group set billing --start earliest --dry-run
    """
    if not name:
        raise click.UsageError("NAME is empty: give the id of a group; nothing was changed")
    given = {SETTINGS[one]: options[one] for one in SETTINGS if options[one] is not None}
    if not given:
        raise click.UsageError("Nothing to set: give an option such as --attempts 5")
    changes = {
        setting: str(value).lower() if isinstance(value, bool) else str(value)
        for setting, value in given.items()
    }
    resource = Resource(GROUP, name)
    operations = [(setting, SET, value) for setting, value in changes.items()]
    alter(session, resource, operations, is_dry_run=options["dry_run"])
    if options["as_json"]:
        print_json({"group": name, "changes": changes, "dry_run": options["dry_run"]})
        return
    for setting, value in changes.items():
        done = "valid" if options["dry_run"] else "changed"
        tell(f"{done} for group {name}: {setting}={value}")
