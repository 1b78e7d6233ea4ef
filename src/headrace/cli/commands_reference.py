"""The reference page of commands, generated from their help when the site is built.

python -m headrace.cli.commands_reference
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Commands

Generated from the help of each command: the option `--help` shows the same.
"""
_WIDTH = 96


def page() -> str:
    """The page, as Markdown."""
    lines = [_HEAD]
    context = click.Context(cli, info_name="headrace", max_content_width=_WIDTH)
    context.terminal_width = _WIDTH
    for depth, one in _all(context, 0):
        marks = "#" * min(depth + 1, 4)
        if depth:
            lines += [f"{marks} {one.command_path}", ""]
        lines += ["```text", one.command.get_help(one).rstrip(), "```", ""]
    return "\n".join(lines)


def _all(context: click.Context, depth: int) -> Iterator[tuple[int, click.Context]]:
    """The contexts of a command and of those below it."""
    yield depth, context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inner = click.Context(below, parent=context, info_name=name)
                inner.terminal_width = _WIDTH
                yield from _all(inner, depth + 1)


if __name__ == "__main__":
    print(page())
