"""`headrace connections`: the Kafka clients of one broker, their software, quotas and throttling.

Invariants: uses HTTP; each broker knows its own connections alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import AS_JSON, print_json, print_table
from headrace.cli.parameters import PRINCIPAL_NAME
from headrace.cli.web import HTTP, Web

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

PAGE = 1_000


@click.command()
@click.option("--software", metavar="NAME", help="Only of this software, as clients name it.")
@click.option("--software-version", metavar="VERSION", help="Only of this version of it.")
@click.option(
    "--principal",
    type=PRINCIPAL_NAME,
    metavar="TYPE:NAME",
    help="Only of this user, such as User:alice.",
)
@click.option("--client-id", metavar="NAME", help="Only of this client id.")
@click.option("--counts", "is_counted", is_flag=True, help="Count them by software and user.")
@HTTP
@AS_JSON
@click.pass_obj
def connections(
    session: CliSession, /, *, is_counted: bool, as_json: bool, **wanted: str | None
) -> None:
    """List the Kafka clients that are connected with a broker, with quotas and throttling.

    \b
    Examples:
      headrace connections --counts
      headrace connections --software apache-kafka-java --json
    """
    query = {**wanted, "limit": 1 if is_counted else PAGE}
    web = Web(session)
    if is_counted:
        found = next(web.ask_pages("GET", "/v1/connections", query=query))["counts"]
    else:
        pages = web.ask_pages("GET", "/v1/connections", query=query)
        found = [one for answer in pages for one in answer["connections"]]
    if as_json:
        print_json(found)
    elif is_counted:
        titles = ["software", "version", "principal", "connections", "throttled ms"]
        names = ("software", "software_version", "principal", "connections", "throttled_ms")
        table = [[one[name] for name in names] for one in found]
        print_table(titles, table, empty="no such connections")
    else:
        titles = ["address", "client id", "software", "version", "principal", "quotas",
                  "throttled ms"]  # fmt: skip
        print_table(titles, [_row(one) for one in found], empty="no such connections")


def _row(one: dict[str, Any]) -> list[Any]:
    quotas = ", ".join(f"{name}={rate:g}" for name, rate in one["quotas"].items())
    names = ("address", "client_id", "software", "software_version", "principal")
    return [*(one[name] for name in names), quotas, one["throttled_ms"]]
