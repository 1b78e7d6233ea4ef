"""`headrace key`: API keys, which programs use instead of a password.

Invariants: a key is printed once, when it is created; it is never an option or an argument.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.names import NAME, key_in, written_name
from headrace.cli.output import (
    AS_JSON,
    VALIDATE_ONLY,
    confirm,
    iso_time,
    print_json,
    print_table,
    tell,
)
from headrace.cli.pairs import parse_duration_ms
from headrace.cli.parameters import CommandGroup
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

_SCOPE: Final = re.compile(
    r"([A-Za-z_]+(?:,[A-Za-z_]+)*) (topic|group|transactional-id|cluster|user) (.+)"
)


def _changing(path: str, *, dry_run: bool) -> str:
    return f"{path}?dry_run=true" if dry_run else path


def _rules(session: CliSession, scopes: tuple[str, ...]) -> list[dict[str, str]]:
    """The rules of scopes such as `READ,WRITE topic orders-*`. Raises CommandFailed."""
    rules = []
    for scope in scopes:
        match = _SCOPE.fullmatch(scope.strip())
        if match is None:
            raise CommandFailed(
                f"{scope!r} is not a scope; nothing was created",
                "Write operations, a kind of resource and a name: --scope 'READ,WRITE topic orders'"
                "; a name that ends with * is a prefix",
                USAGE,
            )
        operations, resource, name = match.groups()
        is_prefix = name.endswith("*") and name != "*"
        name = key_in(session, name)
        rules += [
            {
                "operation": operation.upper(),
                "resource": resource,
                "name": name.removesuffix("*") if is_prefix else name,
                "pattern": "prefixed" if is_prefix else "literal",
            }
            for operation in operations.split(",")
        ]
    return rules


def _scope_text(key: dict[str, Any]) -> str:
    if "scope" not in key:
        return "all rights of its user"
    return "; ".join(
        f"{rule['operation']} {rule['resource']} {written_name(rule['name'])}"
        + ("*" if rule["pattern"] == "prefixed" else "")
        for rule in key["scope"]
    )


@click.group(cls=CommandGroup)
def key() -> None:
    """Create, list and revoke API keys for HTTP and access keys for RocketMQ's clients.

    \b
    Examples:
      headrace key create nightly-export --scope "READ topic orders" --expires 30d
      headrace key create agent --scope "READ,WRITE topic raw.*" --scope "READ group agent"
      headrace key create billing --for rocketmq --user billing
      headrace key list
      headrace key revoke 0123456789abcdef --yes

    A program sends its key as `Authorization: Bearer hrk_...`; RocketMQ's clients sign with theirs.
    A key acts as the user that created it, within its scope. See docs/SECURITY.md.
    """


@key.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar='"OPERATIONS RESOURCE NAME"',
    help="Limit the key, such as 'READ,WRITE topic orders'; a name that ends with * is a prefix."
    " Default: whatever its user may do.",
)
@click.option("--expires", metavar="DURATION", default="90d", show_default=True, help="Such as 8h.")
@click.option(
    "--for",
    "kind",
    type=click.Choice(("http", "rocketmq")),
    default="http",
    show_default=True,
    help="Which clients use it. RocketMQ's get an access key and a secret.",
)
@click.option(
    "--user", type=NAME, metavar="NAME", help="Act as another user: needs CREATE_TOKENS on it."
)
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def create(
    session: CliSession, name: str, scopes: tuple[str, ...], expires: str, kind: str,
    user: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a key, and print it once."""
    body: dict[str, Any] = {"name": name, "lifetime_ms": parse_duration_ms(expires), "kind": kind}
    if user is not None:
        body["user"] = user
    if scopes:
        body["scope"] = _rules(session, scopes)
    made = Web(session).ask("POST", _changing(path_of("keys"), dry_run=dry_run), body)
    if as_json:
        print_json(made)
        return
    if dry_run:
        tell(f"valid: key {name} of {written_name(made['principal'])} ({_scope_text(made)})")
        return
    click.echo(
        f"key {made['id']} of {written_name(made['principal'])} created ({_scope_text(made)})",
        err=True,
    )
    click.echo(f"expires {iso_time(made['expires_ms'])}; it is shown only now:", err=True)
    if kind == "rocketmq":
        click.echo(f"access key: {made['id']}")
        click.echo(f"secret: {made['secret']}")
    else:
        click.echo(made["key"])


@key.command("list")
@AS_JSON
@HTTP
@click.pass_obj
def list_(session: CliSession, as_json: bool) -> None:
    """List the keys that you may see, without their secrets."""
    found = _found(session)
    if as_json:
        print_json({"keys": found})
        return
    print_table(
        ["id", "name", "for", "principal", "expires", "scope"],
        [
            [one["id"], one["name"], one["kind"], one["principal"], iso_time(one["expires_ms"]),
             _scope_text(one)]
            for one in found
        ],
        empty="no keys: headrace key create makes one",
    )  # fmt: skip


def _found(session: CliSession) -> list[dict[str, Any]]:
    pages = Web(session).ask_pages("GET", path_of("keys"), query={})
    return [one for page in pages for one in page["keys"]]


@key.command()
@click.argument("key_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@VALIDATE_ONLY
@HTTP
@click.pass_obj
def revoke(session: CliSession, key_id: str, yes: bool, dry_run: bool) -> None:
    """Revoke a key: requests with it are refused within a second."""
    confirm(f"Revoke key {key_id}?", is_sure=yes or dry_run)
    gone = Web(session).ask("DELETE", _changing(path_of("keys", key_id), dry_run=dry_run))
    tell(f"key {gone['id']} ({gone['name']}) {'would be ' if dry_run else ''}revoked")
