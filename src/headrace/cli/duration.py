"""Durations as option values: 60s, 10m, 2h.

Invariants: one option type, nothing else.
"""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """Seconds, from a number and a unit."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See click."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration such as 60s, 10m or 2h", param, ctx)
        return float(found[1]) * _UNITS[found[2]]
