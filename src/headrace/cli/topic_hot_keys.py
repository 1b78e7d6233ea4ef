"""`headrace topic hot-keys`: which keys most records of a partition have.

Invariants: uses HTTP; the owner of the partition counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

RECORDS_MAX = 10_000


@click.command("hot-keys")
@click.argument("topic", type=TOPIC_NAME)
@click.option("--partition", "-p", required=True, type=click.IntRange(0), help="Whose keys.")
@click.option(
    "--records",
    "-n",
    type=click.IntRange(1, RECORDS_MAX),
    default=RECORDS_MAX,
    show_default=True,
    help="How many records are counted at most.",
)
@click.option("--offset", type=click.IntRange(0), help="Count from here on, not the newest.")
@HTTP
@AS_JSON
@click.pass_obj
def hot_keys(
    session: CliSession,
    /,
    topic: str,
    partition: int,
    records: int,
    offset: int | None,
    as_json: bool,
) -> None:
    """Count the keys of the newest records of a partition: the 20 with the most records.

    \b
    Examples:
      headrace topic hot-keys orders --partition 0
      headrace topic hot-keys orders -p 0 --records 1000 --offset 52000
    """  # fmt: skip
    query = f"?records={records}" + ("" if offset is None else f"&offset={offset}")
    path = path_of("topics", topic, "hot-keys", str(partition))
    found = Web(session).ask("GET", path + query)
    if as_json:
        print_json(found)
        return
    count = max(found["records"], 1)
    rows = [
        [
            "(none)" if one["key"] is None else one["key"],
            one["records"],
            f"{100 * one['records'] / count:.1f} %",
            one["size_bytes"],
        ]
        for one in found["keys"]
    ]
    print_table(["key", "records", "share", "bytes"], rows, empty="no records")
    tell(
        f"{found['records']:,} records with {found['distinct_keys']:,} keys,"
        f" from offset {found['first_offset']:,} to {found['end_offset']:,}"
        + ("" if found["is_whole"] else ": the time or bytes of one call ended there")
    )
