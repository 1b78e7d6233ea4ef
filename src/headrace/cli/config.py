"""`headrace config`: broker and group settings at run time.

Invariants: topic settings belong to `headrace topic alter`. A broker validates a change and stores
it in the cluster's metadata; every broker applies it immediately, and after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.names import GROUP_NAME
from headrace.cli.output import AS_JSON, VALIDATE_ONLY, print_json, print_table
from headrace.cli.pairs import setting
from headrace.cli.parameters import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.config_requests import Resource, Shown
    from headrace.cli.session import CliSession

_ID = click.IntRange(0, 2**31 - 1)
ONE_BROKER = click.option(
    "--broker", type=_ID, default=None, help="Only this broker. Default: all brokers."
)
GROUP = click.option(
    "--group",
    default=None,
    type=GROUP_NAME,
    metavar="GROUP",
    help="A consumer, share or streams group's settings.",
)


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and change settings of brokers and groups.

    \b
    Examples:
      headrace config list
      headrace config list --broker 2 --all --json
      headrace config list --for-all
      headrace config get num.partitions
      headrace config set log.retention.ms=7d num.partitions=6 --dry-run
      headrace config set headrace.log.level=debug --broker 2
      headrace config unset log.retention.ms
      headrace config set share.auto.offset.reset=earliest --group workers
      headrace config list --group workers --all

    For topic settings see headrace topic alter. All settings: docs/reference/settings.md.
    """


def _resource(session: CliSession, broker: int | None, group: str | None) -> Resource:
    """The group, the broker, or the broker with the lowest id. Raises CommandFailed."""
    from headrace.cli.config_requests import BROKER, Resource, broker_addresses

    if group is not None:
        return _group(broker, group)
    return Resource(
        BROKER, str(next(iter(broker_addresses(session))) if broker is None else broker)
    )


def _group(broker: int | None, group: str) -> Resource:
    from headrace.cli.config_requests import GROUP as KIND
    from headrace.cli.config_requests import Resource

    if broker is not None:
        raise click.UsageError("--broker and --group exclude each other: a group has no broker")
    if not group:
        raise click.UsageError("--group needs the id of a group")
    return Resource(KIND, group)


def _owner(broker: int | None, group: str | None) -> dict[str, Any]:
    """Whose settings they are, for JSON."""
    return {"broker": broker} if group is None else {"group": group}


def _row(shown: Shown) -> dict[str, Any]:
    return {
        "name": shown.name,
        "value": shown.value,
        "source": shown.source,
        "live": shown.is_live,
        "sensitive": shown.is_sensitive,
    }


@config.command("list")
@click.option("--broker", type=_ID, default=None, help="Default: the one with the lowest id.")
@GROUP
@click.option("--for-all", is_flag=True, help="Only what is set for all brokers.")
@click.option("--all", "is_all", is_flag=True, help="Include settings with default values.")
@AS_JSON
@click.pass_obj
def list_(
    session: CliSession,
    /,
    broker: int | None,
    group: str | None,
    for_all: bool,
    is_all: bool,
    as_json: bool,
) -> None:
    """List the settings of a broker or group with the source of each value."""
    from headrace.cli.config_requests import ALL_BROKERS, describe

    if for_all and (broker, group) != (None, None):
        raise click.UsageError("--for-all excludes --broker and --group")
    resource = ALL_BROKERS if for_all else _resource(session, broker, group)
    shown = describe(session, resource)
    # Of a group, values that come from brokers are defaults.
    rows = [
        _row(one)
        for one in shown
        if is_all or (one.source != "default" if group is None else one.source == "group")
    ]
    if as_json:
        number = int(resource.name) if group is None and not for_all else None
        print_json(_owner(number, group) | {"settings": rows})
        return
    print_table(
        ["setting", "value", "from", "change"],
        [
            [
                row["name"],
                "(not shown)" if row["sensitive"] else row["value"],
                row["source"],
                "live" if row["live"] else "restart",
            ]
            for row in rows
        ],
        "All brokers"
        if for_all
        else f"Broker {resource.name}"
        if group is None
        else f"Group {group}",
    )


@config.command()
@click.argument("name")
@click.option("--broker", type=_ID, default=None, help="Default: the one with the lowest id.")
@GROUP
@AS_JSON
@click.pass_obj
def get(
    session: CliSession, /, name: str, broker: int | None, group: str | None, as_json: bool
) -> None:
    """Print the value of one setting of a broker or group."""
    from headrace.cli.config_requests import describe

    shown = describe(session, _resource(session, broker, group))
    found = next((one for one in shown if one.name == name), None)
    if found is None:
        of_group = "" if group is None else f" --group {group}"
        raise CommandFailed(
            f"unknown {'broker' if group is None else 'group'} setting {name[:100]!r}",
            f"List settings: headrace config list --all{of_group}",
            NOT_FOUND,
        )
    if as_json:
        print_json(_row(found) | {"documentation": found.documentation})
    elif found.is_sensitive:
        raise CommandFailed(
            f"{name} is not shown: it is a secret, or a path of the broker's machine"
        )
    else:
        click.echo(found.value or "")


@config.command("set")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@ONE_BROKER
@GROUP
@VALIDATE_ONLY
@AS_JSON
@click.pass_obj
def set_(
    session: CliSession,
    /,
    changes: tuple[str, ...],
    broker: int | None,
    group: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings atomically."""
    from headrace.cli.config_requests import SET

    pairs = [setting(change, "num.partitions=6") for change in changes]
    operations = [(name, SET, value) for name, value in pairs]
    _alter(session, (broker, group), operations, dry_run=dry_run, as_json=as_json)


@config.command()
@click.argument("names", nargs=-1, required=True)
@ONE_BROKER
@GROUP
@VALIDATE_ONLY
@AS_JSON
@click.pass_obj
def unset(
    session: CliSession,
    /,
    names: tuple[str, ...],
    broker: int | None,
    group: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove changes and return to the value given at start-up or the default."""
    from headrace.cli.config_requests import DELETE

    operations = [(name, DELETE, None) for name in names]
    _alter(session, (broker, group), operations, dry_run=dry_run, as_json=as_json)


def _alter(
    session: CliSession,
    owner: tuple[int | None, str | None],
    operations: Sequence[tuple[str, int, str | None]],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """`owner`: a broker or a group; neither: all brokers."""
    from headrace.cli.config_requests import ALL_BROKERS, SET, alter

    resource = ALL_BROKERS if owner == (None, None) else _resource(session, *owner)
    alter(session, resource, operations, is_dry_run=dry_run)
    broker, group = owner
    if as_json:
        done = {name: value for name, _, value in operations}
        print_json(_owner(broker, group) | {"changes": done, "dry_run": dry_run})
        return
    whom = "all brokers" if broker is None else f"broker {broker}"
    if group is not None:
        whom = f"group {group}"
    for name, operation, value in operations:
        change = f"{name}={value}" if operation == SET else f"{name} unset"
        click.echo(f"{'valid' if dry_run else 'changed'} for {whom}: {change}")
