"""Options of the form NAME=VALUE.

Invariants: text in, values out; imports only click, because most commands need it.
"""

from __future__ import annotations

import click


def name_and_value(text: str, example: str = "") -> tuple[str, str]:
    """Split at the first `=`. Raises BadParameter, with the example."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        shown = f", e.g. {example}" if example else ""
        raise click.BadParameter(f"{text!r} is not NAME=VALUE{shown}")
    return name, value
