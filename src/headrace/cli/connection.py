"""The options that select the cluster, before or after a command.

Invariants: each option is defined once. Before the command it creates the Session, after it it
changes the existing Session; the latter takes precedence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.pairs import name_and_value
from headrace.cli.session import DEFAULT_BOOTSTRAP, CliSession

if TYPE_CHECKING:
    from collections.abc import Callable

_BOOTSTRAP_META = "headrace.cli.bootstrap"


def _parse_settings(_ctx: object, _param: object, values: tuple[str, ...]) -> dict[str, str]:
    return dict(name_and_value(value) for value in values)


def _keep_bootstrap(ctx: click.Context, _param: object, value: str | None) -> None:
    if value is not None:
        ctx.meta[_BOOTSTRAP_META] = value
        if isinstance(ctx.obj, CliSession):
            ctx.obj.given_bootstrap, ctx.obj.is_default = value, False


def _keep_timeout(ctx: click.Context, _param: object, value: float | None) -> None:
    if value is not None and isinstance(ctx.obj, CliSession):
        ctx.obj.timeout_s = value


def _keep_settings(ctx: click.Context, param: object, values: tuple[str, ...]) -> None:
    settings = _parse_settings(ctx, param, values)
    if isinstance(ctx.obj, CliSession):
        ctx.obj.given_config.update(settings)


def _keep_context(ctx: click.Context, _param: object, value: str | None) -> None:
    if value is not None and isinstance(ctx.obj, CliSession):
        ctx.obj.context_name = value


def _options(*, is_behind: bool) -> list[click.Option]:
    """New objects, since each belongs to one command; `is_behind`: the command is not the root
    command."""

    def keep(value: Callable[..., Any]) -> dict[str, Any]:
        return {"callback": value, "expose_value": False} if is_behind else {}

    first: dict[str, Any] = {} if is_behind else {"show_default": True}
    return [
        click.Option(
            ["--bootstrap", "-b"],
            metavar="HOST[:PORT][,...]",
            default=None,
            envvar=None if is_behind else "HEADRACE_BOOTSTRAP",
            show_envvar=not is_behind,
            help="One or more brokers; the others are discovered. Default: those of the context, or"
            f" {DEFAULT_BOOTSTRAP}.",
            **keep(_keep_bootstrap),
        ),
        click.Option(
            ["--context", "context_name"],
            metavar="NAME",
            default=None,
            envvar=None if is_behind else "HEADRACE_CONTEXT",
            show_envvar=not is_behind,
            help="How to reach the cluster: see headrace context. Default: the current context,"
            " unless --bootstrap is given.",
            **keep(_keep_context),
        ),
        click.Option(
            ["--timeout", "timeout_s"],
            metavar="SECONDS",
            type=click.FloatRange(min=0.1),
            default=None if is_behind else 15.0,
            help="Maximum time to wait for each response.",
            **first,
            **keep(_keep_timeout),
        ),
        click.Option(
            ["-X", "client_config"],
            metavar="NAME=VALUE",
            multiple=True,
            help="A librdkafka client setting, e.g. -X socket.timeout.ms=5000.",
            **({"callback": _parse_settings} | keep(_keep_settings)),
        ),
    ]


def before_commands(command: click.Command) -> click.Command:
    """Add the options to the root command, which creates the Session from their values."""
    command.params[:0] = _options(is_behind=False)
    return command


def behind_commands(command: click.Command) -> None:
    """Add the options to `command` and every command below it, too."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            behind_commands(below)
    if not any("--bootstrap" in param.opts for param in command.params):
        command.params += _options(is_behind=True)


def bootstrap_of(ctx: click.Context) -> str | None:
    """The options parsed so far: for completion."""
    found = ctx.meta.get(_BOOTSTRAP_META) or ctx.find_root().params.get("bootstrap")
    return None if found is None else str(found)
