"""Options of the form NAME=VALUE.

Invariants: text in, values out; imports only click, because most commands need it.
"""

from __future__ import annotations

import re
from typing import Final

import click

_TIMES_MS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
}  # fmt: skip
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B")


def name_and_value(text: str, example: str = "") -> tuple[str, str]:
    """Split at the first `=`. Raises BadParameter, with the example."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        shown = f", e.g. {example}" if example else ""
        raise click.BadParameter(f"{text!r} is not NAME=VALUE{shown}")
    return name, value


def setting(text: str, example: str = "") -> tuple[str, str]:
    """As `name_and_value`, with `retention.ms=7d` in milliseconds and `retention.bytes=10GiB` in
    bytes, which is what the broker takes. A value of another form is the broker's to judge."""
    name, value = name_and_value(text, example)
    if name.endswith(".ms"):
        try:  # several: headrace.share.retry.backoff.ms
            return name, ",".join(str(parse_duration_ms(part)) for part in value.split(","))
        except ValueError:
            return name, value
    if re.search(r"[._]bytes$|_byte_rate$", name) and (found := _SIZE.fullmatch(value)):
        unit = (1024 if found[3] else 1000) ** (" KMGT".index(found[2]))
        return name, str(round(float(found[1]) * unit))
    return name, value


def parse_duration_ms(text: str) -> int:
    """Parse `90s`, `15m`, `1h30m`, `2d`. Raises ValueError."""
    parts = DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s, 15m, 1h30m or 2d")
    return int(sum(float(number) * _TIMES_MS[unit] for number, unit in parts))
