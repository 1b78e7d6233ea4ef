"""`headrace tenant`: teams with names of their own for topics, groups and transactional ids.

Invariants: any broker accepts a change, and every broker applies it within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.output import AS_JSON, VALIDATE_ONLY, confirm, print_json, print_table, tell
from headrace.cli.pairs import setting
from headrace.cli.parameters import PRINCIPAL_NAME, CommandGroup
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

_ACCESS: Final = click.option(
    "--access",
    type=click.Choice(["all", "rules"]),
    help="What its principals may do with its names: everything that no rule denies, or what"
    " rules about these names allow. [default: all]",
)
_WAIT_S: Final = 30
"""For all brokers to list their groups."""


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Create, list, change and delete tenants.

    \b
    Examples:
      headrace tenant create acme --principal User:alice --principal User:bob
      headrace tenant list
      headrace tenant describe acme
      headrace tenant set acme --add User:carol --remove User:bob
      headrace tenant set acme --move User:dora
      headrace tenant set acme --limit topics=100 --limit producer_byte_rate=1MiB
      headrace tenant set acme --limit stored_bytes=10737418240 --when-full drop-oldest
      headrace tenant set acme --audit-topic audit
      headrace tenant delete acme --yes

    A principal of a tenant uses that tenant's names alone. See docs/TENANTS.md.
    """


def _asked(session: CliSession, method: str, path: str, body: Any = None, **query: bool) -> Any:
    given = urlencode({name: "true" for name, value in query.items() if value})
    return Web(session).ask(method, f"{path}?{given}" if given else path, body, wait_s=_WAIT_S)


@tenant.command()
@click.argument("name")
@click.option(
    "--principal",
    "principals",
    multiple=True,
    type=PRINCIPAL_NAME,
    metavar="TYPE:NAME",
    help="Of the tenant, for example User:alice. May be repeated.",
)
@_ACCESS
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def create(
    session: CliSession, name: str, principals: tuple[str, ...], access: str | None, *,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a tenant. One that exists stays, and gets the principals."""
    body: dict[str, Any] = {"name": name, "principals": [*principals]}
    if access is not None:
        body["access"] = access
    made = _asked(session, "POST", path_of("tenants"), body, dry_run=dry_run)
    if as_json:
        print_json(made)
    else:
        done = "valid" if dry_run else "exists" if made["existed"] else "created"
        tell(f"{done}: tenant {name}")


@tenant.command("list")
@AS_JSON
@HTTP
@click.pass_obj
def list_(session: CliSession, *, as_json: bool) -> None:
    """List tenants."""
    pages = Web(session).ask_pages("GET", path_of("tenants"), query={})
    found = [one for page in pages for one in page["tenants"]]
    if as_json:
        print_json({"tenants": found})
        return
    rows = [
        [one["name"], ", ".join(one["principals"]), _limits(one), one["in_setting"]]
        for one in found
    ]
    columns = ["tenant", "principals", "limits", "in setting"]
    print_table(columns, rows, empty="no tenants: headrace tenant create NAME makes one")


def _limits(one: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in one["limits"].items())


@tenant.command()
@click.argument("name")
@AS_JSON
@HTTP
@click.pass_obj
def describe(session: CliSession, name: str, *, as_json: bool) -> None:
    """Show a tenant's principals and limits, and how many topics and groups it has."""
    found = _asked(session, "GET", path_of("tenants", name))
    if as_json:
        print_json(found)
        return
    tell(f"tenant {name}: {found['topics']} topics, {found['groups']} groups")
    if found["access"] != "all":
        tell("  its principals may do what rules allow (headrace acl list)")
    for one in found["principals"]:
        tell(f"  {one}")
    if "audit_topic" in found:
        tell(f"  audit log in its topic {found['audit_topic']}")
    for name, value in found["limits"].items():
        full = f"; when full: {found['when_full']}" if name == "stored_bytes" else ""
        tell(f"  at most {value} {name} ({found['used'][name]} used{full})")


@tenant.command("set")
@click.argument("name")
@click.option(
    "--add",
    "added",
    multiple=True,
    type=PRINCIPAL_NAME,
    metavar="TYPE:NAME",
    help="A principal to add. May be repeated.",
)
@click.option(
    "--move",
    "moved",
    multiple=True,
    type=PRINCIPAL_NAME,
    metavar="TYPE:NAME",
    help="A principal to take from its tenant. May be repeated.",
)
@click.option(
    "--remove",
    "removed",
    multiple=True,
    type=PRINCIPAL_NAME,
    metavar="TYPE:NAME",
    help="A principal to remove. May be repeated.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=NUMBER",
    help="topics, partitions, connections, groups, stored_bytes, producer_byte_rate,"
    " consumer_byte_rate or request_percentage (100: one processor), of all brokers together;"
    " NAME= removes the limit. May be repeated.",
)
@click.option(
    "--when-full",
    type=click.Choice(["reject", "slow", "drop-oldest"]),
    help="What happens once it stores all of stored_bytes. [default: reject]",
)
@_ACCESS
@click.option(
    "--audit-topic",
    metavar="TOPIC",
    help="A topic of the tenant that gets the audit log's lines about it, created if it is missing;"
    " empty: none.",
)
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def set_(
    session: CliSession, name: str, added: tuple[str, ...], moved: tuple[str, ...],
    removed: tuple[str, ...], limits: tuple[str, ...], when_full: str | None,
    access: str | None, audit_topic: str | None, *, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Add principals to a tenant, move or remove others, and set limits and rights."""
    modes = {"when_full": when_full, "access": access, "audit_topic": audit_topic}
    body: dict[str, Any] = {what: one for what, one in modes.items() if one is not None}
    if not (added or moved or removed or limits or body):
        raise CommandFailed(
            "name what to change",
            "Add --add, --move or --remove User:NAME, --limit NAME=NUMBER, --when-full, --access or"
            " --audit-topic",
            USAGE,
        )
    given: dict[str, int | None] = {}
    for one in limits:
        what, value = setting(one, "topics=100")
        if not (value.isascii() and (value.isdigit() or not value)):
            raise CommandFailed(f"{one!r} is not NAME=NUMBER", "Write topics=100", USAGE)
        given[what] = int(value) if value else None
    body |= {"add": [*added], "remove": [*removed], "limits": given}
    if moved:
        body["move"] = [*moved]
    changed = _asked(session, "PATCH", path_of("tenants", name), body, dry_run=dry_run)
    if as_json:
        print_json(changed)
        return
    principals = ", ".join(changed["tenant"]["principals"])
    done = "valid" if dry_run else "changed"
    tell(f"{done}: tenant {name} has {principals or 'no principals'}")


@tenant.command()
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Also with topics, groups or principals. They stay: super users see them.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def delete(
    session: CliSession, name: str, *, force: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete a tenant that has no topics, groups and principals."""
    if not dry_run:
        confirm(f"Delete tenant {name}?", is_sure=yes)
    gone = _asked(session, "DELETE", path_of("tenants", name), None, dry_run=dry_run, force=force)
    if as_json:
        print_json(gone)
    else:
        tell(f"{'valid' if dry_run else 'deleted'}: tenant {name}")
