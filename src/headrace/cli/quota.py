"""`headrace quota`: client quotas of the brokers.

Invariants: any broker accepts a change; it is stored in the cluster's metadata, and every broker
applies it immediately, and after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failures import FAILED, NOT_FOUND, USAGE, CommandFailed
from headrace.cli.names import NAME, written_name
from headrace.cli.output import AS_JSON, VALIDATE_ONLY, print_json, print_table, tell
from headrace.cli.pairs import setting
from headrace.cli.parameters import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cli.session import CliSession

DESCRIBE, ALTER = (48, 1), (49, 1)
ANY = 2
KINDS = {"user": "user", "client_id": "client-id", "ip": "ip"}
Entity = dict[str, str | None]


def entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name an entity."""
    for name, what in (
        ("ip", "an IP address"),
        ("client-id", "a client id"),
        ("user", "a user"),
    ):
        command = click.option(
            f"--default-{name}", is_flag=True, help=f"The default for every {name}."
        )(command)
        kind = NAME if name == "user" else None
        command = click.option(f"--{name}", type=kind, metavar="NAME", help=f"Of {what}.")(command)
    return command


def _entity(options: dict[str, Any]) -> Entity:
    """The entity named by the options; empty: none. Raises CommandFailed."""
    found: Entity = {}
    for option, kind in KINDS.items():
        name, is_default = options[option], options[f"default_{option}"]
        if name is not None and is_default:
            raise CommandFailed(
                f"--{kind} and --default-{kind} are mutually exclusive; nothing was changed",
                "Use one of them",
                USAGE,
            )
        if name is not None or is_default:
            found[kind] = name
    return found


def _named(entity: Entity) -> Entity:
    if not entity:
        raise CommandFailed(
            "no entity specified; nothing was changed",
            "Add --user, --client-id, --ip, or --default-user, --default-client-id, --default-ip",
            USAGE,
        )
    return entity


def _text(entity: Entity) -> str:
    return ", ".join(
        f"default {kind}"
        if name is None
        else f"{kind} {written_name(name) if kind == 'user' else name}"
        for kind, name in entity.items()
    )


@click.group(cls=CommandGroup)
def quota() -> None:
    """List, set and delete client quotas. Each broker enforces them separately.

    \b
    Examples:
      headrace quota list
      headrace quota set producer_byte_rate=1MiB --client-id loader
      headrace quota set consumer_byte_rate=5MB --default-client-id --dry-run
      headrace quota delete --client-id loader

    Quotas: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate,
    and connection_creation_rate for IP addresses. See docs/QUOTAS.md.
    """


def _ask(session: CliSession, api: tuple[int, int], body: dict[str, Any]) -> Any:
    from headrace.cli.broker_calls import ask_broker, brokers

    session.check_reachable()
    _, address = next(brokers(session))
    return ask_broker(session, address, api, body)


def _found(session: CliSession, entity: Entity) -> list[tuple[Entity, dict[str, float]]]:
    components = [
        {"entity_type": kind, "match_type": 1 if name is None else 0, "match": name}
        for kind, name in entity.items()
    ]
    answer = _ask(session, DESCRIBE, {"components": components, "strict": False})
    if answer.error_code:
        raise CommandFailed((answer.error_message or "refused").rstrip("."), "", FAILED)
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    ]


@quota.command("list")
@entity_options
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, as_json: bool, **options: Any) -> None:
    """List quotas; with options, only those of matching entities."""
    found = _found(session, _entity(options))
    if as_json:
        print_json({"quotas": [{"entity": entity, "quotas": rates} for entity, rates in found]})
        return
    rows = [
        [_text(entity), key, f"{value:.15g}"]
        for entity, rates in found
        for key, value in sorted(rates.items())
    ]
    columns = ["entity", "quota", "value"]
    print_table(columns, rows, empty="no quotas: headrace quota set --help shows how to set one")


@quota.command("set")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@entity_options
@VALIDATE_ONLY
@AS_JSON
@click.pass_obj
def set_(
    session: CliSession, /, changes: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Set quotas of an entity atomically."""
    rates: dict[str, float | None] = {}
    for change in changes:
        name, value = setting(change, "producer_byte_rate=10MiB")
        try:
            rates[name] = float(value)
        except ValueError:
            raise CommandFailed(
                f"{value!r} is not a number; nothing was changed", "", USAGE
            ) from None
    _alter(session, _named(_entity(options)), rates, dry_run=dry_run, as_json=as_json)


@quota.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@entity_options
@VALIDATE_ONLY
@AS_JSON
@click.pass_obj
def delete(
    session: CliSession, /, names: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Delete quotas of an entity. Default: all of them."""
    entity = _named(_entity(options))
    if not names:
        known = next((rates for one, rates in _found(session, entity) if one == entity), {})
        if not known:
            raise CommandFailed(
                f"{_text(entity)} has no quota", "List quotas: headrace quota list", NOT_FOUND
            )
        names = tuple(known)
    changes: dict[str, float | None] = dict.fromkeys(names)
    _alter(session, entity, changes, dry_run=dry_run, as_json=as_json)


def _alter(
    session: CliSession,
    entity: Entity,
    changes: dict[str, float | None],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in changes.items()
        ],
    }
    answer = _ask(session, ALTER, {"entries": [entry], "validate_only": dry_run})
    (result,) = answer.entries
    if result.error_code:
        message = (result.error_message or f"error {result.error_code}").rstrip(".")
        raise CommandFailed(f"{message}; nothing was changed", "", FAILED)
    if as_json:
        print_json({"entity": entity, "changes": changes, "dry_run": dry_run})
        return
    for key, value in changes.items():
        change = f"{key} deleted" if value is None else f"{key}={value:.15g}"
        tell(f"{'valid' if dry_run else 'changed'} for {_text(entity)}: {change}")
