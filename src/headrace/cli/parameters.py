"""Option types that click does not have.

Invariants: text in, values out; click reports errors with the option's name.
"""

from __future__ import annotations

import click

from headrace.errors import HeadraceError
from headrace.server.settings import parse_address


class Address(click.ParamType[tuple[str, int]]):
    """Host and port."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_address(str(value))
        except HeadraceError as error:
            self.fail(str(error), param, ctx)


def show_address(address: tuple[str, int]) -> str:
    """The type of HOST:PORT options."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
