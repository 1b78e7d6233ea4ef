"""Settings that have no option of their own: those of one listener, and secrets for workers.

Invariants: a secret is never an argument of a process, which all users of the machine can read.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.broker.settings.kinds import Pem
from headrace.broker.settings.table import SETTINGS, setting_named
from headrace.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "listener.name."
_OF_FILE: Final = "headrace.cli.listener_settings"
_FOR_WORKERS: Final = "HEADRACE_WORKER_SETTINGS"
"""Settings of a worker that are no options: JSON, set by its supervisor."""


def _parsed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter("expected listener.name.<name>.<setting>=<value>", ctx, param)
        try:
            if SETTINGS.get(name) is None and setting_named(name).is_secret:
                raise click.BadParameter(
                    f"{name} is a secret, and the command line can be read by others: set it in a"
                    " file (--config)"
                )
            found[name] = checked(name, value)
        except ConfigInvalid as error:
            raise click.BadParameter(str(error), ctx, param) from error
    return found


def checked(name: str, value: object) -> str:
    """A setting of one listener as text. Raises ConfigInvalid, which never repeats a secret."""
    setting = setting_named(name)
    if name in SETTINGS:
        raise ConfigInvalid(f"{name} is not a setting of one listener: use --{setting.option}")
    if not isinstance(value, str):
        raise ConfigInvalid(f"{name}: expected a quoted string")
    if setting.is_secret:
        try:
            setting.kind.parse(value)
        except ValueError as error:
            raise ConfigInvalid(f"{name} is not valid: expected {error}") from None
    else:
        setting.parse(value, "the command line or file")
    return value


listener_setting_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--listener-setting",
    "listener_settings",
    metavar="listener.name.<name>.<setting>=<value>",
    multiple=True,
    callback=_parsed,
    help="A setting of one listener, for example"
    " listener.name.internal.ssl.client.auth=required. May be repeated; in a file it is a key of"
    " [serve].",
)


def keep_of_file(ctx: click.Context, found: dict[str, Any]) -> None:
    """Take the settings of listeners out of the options that a file has set."""
    ctx.meta[_OF_FILE] = {name: found.pop(name) for name in list(found) if name.startswith(PREFIX)}


def listener_settings(ctx: click.Context, given: Mapping[str, str]) -> dict[str, str]:
    """All settings of one listener: `given` on the command line, in the file, or by the supervisor
    of this worker, which also passes on secrets."""
    from_supervisor = json.loads(os.environ.pop(_FOR_WORKERS, "{}"))
    return {**ctx.meta.get(_OF_FILE, {}), **given, **from_supervisor}


def is_argument(name: str) -> bool:
    """Whether a setting may be an argument of a worker's process."""
    setting = SETTINGS.get(name)
    return setting is not None and not setting.is_secret and not isinstance(setting.kind, Pem)


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment by which workers get the settings that are no arguments."""
    others = {name: value for name, value in given.items() if not is_argument(name)}
    return {_FOR_WORKERS: json.dumps(others)} if others else {}
