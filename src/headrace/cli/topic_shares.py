"""`headrace topic share`, `unshare`, `accept`, `leave` and `shares`: topics that tenants share.

Invariants: uses HTTP; any broker accepts a change, and every broker applies it within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.output import AS_JSON, VALIDATE_ONLY, print_json, print_table, tell
from headrace.cli.parameters import OF_TENANT, TOPIC_NAME
from headrace.cli.web import HTTP, Web, path_of
from headrace.records.tenant_names import written_topic

if TYPE_CHECKING:
    from headrace.cli.session import CliSession
_READER: Final = click.option(
    "--with", "reader", required=True, type=OF_TENANT, help="The tenant, which may not exist yet."
)


def _done(answer: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        tell(f"valid: {text}" if answer["dry_run"] else text)


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@_READER
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def share(session: CliSession, topic: str, reader: str, *, dry_run: bool, as_json: bool) -> None:
    """Let another tenant read a topic, once it accepts it.

    \b
    Examples:
      headrace topic share orders --with beta
      headrace topic share acme/orders --with beta     # as an operator
      headrace topic unshare orders --with beta
    """
    body = {"topic": topic, "reader": reader}
    answer = Web(session).ask("POST", path_of("shared-topics", dry_run=dry_run), body)
    _done(answer, f"shared: {written_topic(topic)} with {reader}", as_json=as_json)


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@_READER
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def unshare(session: CliSession, topic: str, reader: str, *, dry_run: bool, as_json: bool) -> None:
    """Let a tenant read a topic no longer."""
    path = path_of("shared-topics", topic, "readers", reader, dry_run=dry_run)
    answer = Web(session).ask("DELETE", path)
    was = "" if answer["existed"] else " (it was not)"
    text = f"not shared any more: {written_topic(topic)} with {reader}{was}"
    _done(answer, text, as_json=as_json)


@click.command()
@click.argument("source", type=TOPIC_NAME)
@click.option("--as", "name", required=True, type=TOPIC_NAME, help="The name of the reader's.")
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def accept(session: CliSession, source: str, name: str, *, dry_run: bool, as_json: bool) -> None:
    """Read a topic that another tenant shares, by a name of one's own.

    \b
    Examples:
      headrace topic accept acme/orders --as partner-orders
      headrace topic accept acme/orders --as beta/partner-orders    # as an operator
      headrace topic leave partner-orders
    """
    body = {"topic": name, "source": source}
    answer = Web(session).ask("POST", path_of("accepted-topics", dry_run=dry_run), body)
    text = f"accepted: {written_topic(source)} as {written_topic(name)}"
    _done(answer, text, as_json=as_json)


@click.command()
@click.argument("name", type=TOPIC_NAME)
@VALIDATE_ONLY
@AS_JSON
@HTTP
@click.pass_obj
def leave(session: CliSession, name: str, *, dry_run: bool, as_json: bool) -> None:
    """Read a topic of another tenant no longer."""
    answer = Web(session).ask("DELETE", path_of("accepted-topics", name, dry_run=dry_run))
    was = "" if answer["existed"] else " (it was not accepted)"
    _done(answer, f"left: {written_topic(name)}{was}", as_json=as_json)


@click.command()
@AS_JSON
@HTTP
@click.pass_obj
def shares(session: CliSession, *, as_json: bool) -> None:
    """List what the tenant shares and reads; for operators, of all tenants."""
    found = {
        name: [
            one
            for page in Web(session).ask_pages("GET", path_of(f"{name}-topics"), query={})
            for one in page["topics"]
        ]
        for name in ("shared", "accepted")
    }
    if as_json:
        print_json(found)
        return
    rows = [
        [written_topic(one["topic"]), one["reader"], "" if one["exists"] else "deleted"]
        for one in found["shared"]
    ]
    print_table(["shared topic", "with", ""], rows, empty="no topic is shared")
    rows = [
        [written_topic(one["topic"]), one["source"], "" if one["is_shared"] else "not shared"]
        for one in found["accepted"]
    ]
    print_table(["accepted as", "topic", ""], rows, empty="no topic of another tenant is accepted")
