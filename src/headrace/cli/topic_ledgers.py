"""`headrace topic ledgers`: where the records of a topic are stored.

Invariants: uses HTTP; the owner of each partition answers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.web import HTTP, Web, path_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


@click.command()
@click.argument("topic", type=TOPIC_NAME)
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    help="Only this one, also with its bookies, for those who may DESCRIBE the cluster.",
)
@HTTP
@AS_JSON
@click.pass_obj
def ledgers(session: CliSession, /, topic: str, partition: int | None, as_json: bool) -> None:
    """List the newest ledgers of each partition, oldest first.

    200 of each, or 5,000 of all together.

    \b
    Examples:
      headrace topic ledgers orders
      headrace topic ledgers orders --partition 0 --json
    """
    query = "" if partition is None else f"?partition={partition}"
    answer = Web(session).ask("GET", path_of("topics", topic, "ledgers") + query)
    if as_json:
        print_json(answer)
        return
    titles = ["partition", "broker", "ledger", "start", "end", "bytes", "state", "copies missing",
              "bookies"]  # fmt: skip
    rows = [_row(part, one) for part in answer["partitions"] for one in part["ledgers"]]
    print_table(titles, rows, empty="no ledgers of partitions that their brokers have loaded")
    _print_tabled([one for part in answer["partitions"] for one in part["ledgers"]])
    for part in answer.get("failed", []):
        tell(f"partition {part['partition']}: {part['error']['detail']}", err=True)


def _row(part: dict[str, Any], one: dict[str, Any]) -> list[Any]:
    places = [("open" if one["is_open"] else "sealed"), *_tiers(one)]
    names = ("ledger", "base_offset", "end_offset", "size_bytes")
    bookies = ", ".join(one.get("bookies", []))
    return [
        *(part[name] for name in ("partition", "broker")),
        *(one[name] for name in names),
        *(", ".join(places), one["copies_missing"], bookies),
    ]


def _print_tabled(ledgers: list[dict[str, Any]]) -> None:
    """How many ledgers the topic's table has replaced, if it does that, and why not the others."""
    kept = Counter(one["object_kept_because"] for one in ledgers)
    del kept[None]
    tabled = sum(one["is_tabled"] for one in ledgers)
    if tabled or kept:
        reasons = [f"{count} as objects ({reason})" for reason, count in sorted(kept.items())]
        places = ", ".join([f"{tabled} ledgers in the topic's table", *reasons])
        tell(f"old records: {places}")


def _tiers(one: dict[str, Any]) -> list[str]:
    if one["is_tabled"]:
        return ["in the topic's table"]
    names = {"is_local": "in the ledger store", "is_offloaded": "in object storage"}
    return [text for name, text in names.items() if one[name]]
