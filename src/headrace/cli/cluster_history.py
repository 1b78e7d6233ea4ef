"""`headrace cluster history`: rates and levels of the last hour, as the console's charts show them.

Invariants: uses HTTP; brokers sample their own figures, and one that does not answer is named.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.cluster_looks import say_failed
from headrace.cli.output import AS_JSON, iso_time, print_json, print_table, tell
from headrace.cli.web import HTTP, Web

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.session import CliSession

LEVELS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
LEVELS_OF_ASCII: Final = "_.-=+*%#"
WIDTH: Final = 40


@click.command()
@click.option("--here", is_flag=True, help="Only the broker that answers, not all together.")
@HTTP
@AS_JSON
@click.pass_obj
def history(session: CliSession, /, here: bool, as_json: bool) -> None:
    """Show rates and levels of the last hour: a line each, from then to now.

    Brokers keep them in memory, from their start on. --json has the points.
    """
    query = "" if here else "&all_brokers=true"
    answer = Web(session).ask("GET", f"/v1/history?points={WIDTH}{query}")
    if as_json:
        print_json(answer)
        return
    points: list[dict[str, Any]] = answer["points"]
    names = [name for name in (points[-1] if points else {}) if name != "at_ms"]
    levels = _levels()
    rows = []
    for name in names:
        values = [one[name] for one in points if one.get(name) is not None]
        known = [value for value in values if value >= 0]
        if known:
            rows.append([name, min(known), max(known), known[-1], line(known, levels)])
    titles = ["figure", "least", "most", "now", f"last {_minutes(points)} min"]
    print_table(titles, rows, empty="no figures yet: brokers take the first ones after 10 s")
    if points:
        tell(f"from {iso_time(points[0]['at_ms'])} to {iso_time(points[-1]['at_ms'])}")
    say_failed(answer)


def line(values: Sequence[float], levels: str = LEVELS) -> str:
    """The values as a line of characters, from the least of them, or 0, to the most."""
    low, high = min(0, *values), max(values)
    step = (high - low) / (len(levels) - 1) or 1
    return "".join(levels[round((value - low) / step)] for value in values)


def _levels() -> str:
    try:
        LEVELS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return LEVELS_OF_ASCII
    return LEVELS


def _minutes(points: Sequence[dict[str, Any]]) -> int:
    return round((points[-1]["at_ms"] - points[0]["at_ms"]) / 60_000) if points else 0
