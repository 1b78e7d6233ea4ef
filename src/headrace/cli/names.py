"""How operators write names that need not be topics': of groups, transactional ids and users.

Invariants: commands work with keys, and this module turns them into `acme/billing` and back at
their edges. Only a broker knows whether the client is an operator of a cluster with tenants. It is
asked once, and only about a name that would be written in another way: other clients' names may
have slashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from headrace.cli.failures import UNREACHABLE, CommandFailed
from headrace.cli.session import CliSession
from headrace.records.tenant_names import USER, key_of, name_in, tenant_of, written

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SESSION: Final = "/v1/session"


def written_by(session: CliSession, key: str) -> str:
    """A key as the session's client writes it."""
    text = written(key)
    return text if text != key and session.has_connected and is_operator(session) else key


def written_name(key: str) -> str:
    """The same for the command that runs."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(CliSession)
    return key if session is None else written_by(session, key)


def key_in(session: CliSession, text: str) -> str:
    """The key of a name that the session's client wrote."""
    key = key_of(text)
    if key == text:
        return text
    if is_operator(session):
        return key
    tenant = tenant_of(key.removeprefix(USER))
    if session.is_operator_unknown and tenant:
        own = name_in(key.removeprefix(USER))
        kind = USER if text.startswith(USER) else ""
        other = f"{kind}/{text.removeprefix(kind)}"
        raise CommandFailed(
            f"{text!r} may be {own!r} of the tenant {tenant!r}, or a name that looks so, and no"
            f" broker said which by HTTP ({session.is_operator_unknown}); nothing was done",
            f"Name a broker's HTTP address with --http URL, or write {other} for the name that is"
            " no tenant's, the key for the other one (docs/TENANTS.md)",
            UNREACHABLE,
        )
    return key if session.is_operator_unknown else text


def is_operator(session: CliSession) -> bool:
    """Whether its client sees the names of all tenants, of which there are some. False if no broker
    answers over HTTP (`is_operator_unknown`): names are shown as they are stored then, and read as
    operators write them."""
    if session.is_operator is None:
        from headrace.cli.web import Web

        try:
            answer = Web(session).ask("GET", _SESSION)
        except CommandFailed as error:
            answer = {}
            session.is_operator_unknown = error.message
        session.is_operator = bool(answer.get("is_operator"))
    return session.is_operator


class WrittenName(click.ParamType[str]):
    """A name of a group, transactional id or user, as its key."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See click.ParamType."""
        session = None if ctx is None or ctx.resilient_parsing else ctx.find_object(CliSession)
        return value if session is None else key_in(session, value)


class GroupName(WrittenName):
    """A group, as its key."""

    name = "group"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See click.ParamType."""
        from headrace.cli.completion import complete_groups

        return complete_groups(ctx, param, incomplete)


NAME: Final = WrittenName()
GROUP_NAME: Final = GroupName()
