"""Option types, and the group of commands, that click does not have.

Invariants: text in, values out; click reports errors with the option's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.broker.security.tenant_ownership import TENANT_NAME
from headrace.cli.completion import complete_topics
from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.names import key_in
from headrace.cli.session import CliSession
from headrace.errors import HeadraceError
from headrace.records.tenant_names import key_of
from headrace.server.settings import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound="Callable[..., Any]")
_SUMMARY_MAX: Final = 500


class CommandGroup(click.Group):
    """A group whose help has the whole summary of each command: click cuts it after one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_SUMMARY_MAX))
                    for name, command in found
                    if command is not None and not command.hidden
                ]
            )


class TopicName(click.ParamType[str]):
    """A topic, as its key: operators may write `acme/orders` for the topic of a tenant."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click.ParamType."""
        return key_of(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See click.ParamType."""
        return complete_topics(ctx, incomplete)


TOPIC_NAME: Final = TopicName()


class PrincipalName(click.ParamType[str]):
    """A principal, with its type: without one it would be nobody's name."""

    name = "principal"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click.ParamType. Raises CommandFailed."""
        if not all(value.partition(":")):
            option = "--principal" if param is None else param.opts[0]
            raise CommandFailed(
                f"{value[:100]!r} has no type or no name; nothing was changed",
                f"Add {option} User:{value.strip(':') or 'NAME'}",
                USAGE,
            )
        session = None if ctx is None else ctx.find_object(CliSession)
        return value if session is None else key_in(session, value)


class TenantName(click.ParamType[str]):
    """The name of a tenant."""

    name = "tenant"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click.ParamType. Raises CommandFailed."""
        if TENANT_NAME.fullmatch(value) is None:
            option = "--tenant" if param is None else param.opts[0]
            raise CommandFailed(
                f"{value[:100]!r} is not the name of a tenant", f"Check {option}", USAGE
            )
        return value


OF_TENANT: Final = TenantName()
PRINCIPAL_NAME: Final = PrincipalName()


def number_option(
    name: str,
    default: float,
    low: float | None,
    text: str,
    *,
    high: float | None = None,
    metavar: str | None = None,
) -> Callable[[Command], Command]:
    """An option from `low` to `high`, which takes fractions if its default is no integer."""
    kind: Any = click.IntRange if isinstance(default, int) else click.FloatRange
    bounds = kind(low, high)
    return click.option(
        name, default=default, show_default=True, type=bounds, metavar=metavar, help=text
    )


class Address(click.ParamType[tuple[str, int]]):
    """Host and port."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_address(str(value))
        except HeadraceError as error:
            self.fail(str(error), param, ctx)


def show_address(address: tuple[str, int]) -> str:
    """The type of HOST:PORT options."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
