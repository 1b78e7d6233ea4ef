"""Commands and code in the documents, and in the command line's own help.

Invariants: reads files, runs nothing. A command is a line that a reader would type: in a code
block, or between backticks in a sentence.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from headrace.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROGRAM = re.compile(r"(?:\.venv/bin/)?headrace$")
_TYPED = re.compile(r"^(?:\.venv/bin/)?headrace |^make |^pip install |^python -m headrace")
_INLINE = re.compile(r"`((?:\.venv/bin/)?headrace [^`\n]+|make [^`\n]+|pip install [^`\n]+)`")
_SHORTENED = re.compile(r"\.\.\.|\w\|\w")


class Command(NamedTuple):
    """One line to type."""

    place: str
    text: str
    is_sentence: bool
    """Whether it is part of a sentence, and may leave out what does not matter there."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Code(NamedTuple):
    """A block of Python."""

    place: str
    text: str

    def __str__(self) -> str:
        return self.place


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language or "", text) of each code block of a page, fenced or indented."""
    fence: str | None = None
    lines: list[str] = []
    before = ""
    for line in [*page.read_text().splitlines(), ""]:
        if fence is None and line.startswith("```"):
            fence = line.removeprefix("```").strip()
            lines = []
        elif fence is not None and line.startswith("```"):
            yield fence, "\n".join(lines)
            fence, lines = None, []
        elif fence is not None:
            lines.append(line)
        elif line.startswith("    ") and (lines or not before.strip() or before[0] == "#"):
            lines.append(line[4:])
        elif lines and line.strip():
            yield "", "\n".join(lines)
            lines = []
        elif lines:
            lines.append("")
        before = line
    if lines:
        yield "", "\n".join(lines)


def commands() -> Iterator[Command]:
    """All commands of all pages."""
    for page in PAGES:
        place = str(page.relative_to(ROOT))
        for language, text in blocks(page):
            if language in {"", "sh", "bash", "shell"}:
                for line in text.replace("\\\n", " ").splitlines():
                    for part in line.split(" | "):
                        if _TYPED.match(part.strip()):
                            yield Command(place, part.strip(), False)
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for text in _INLINE.findall(prose):
            if not _SHORTENED.search(text):
                yield Command(place, text, True)


def helped() -> Iterator[Command]:
    """The examples in the help of every command."""
    for path, command in _all_commands(cli, click.Context(cli, info_name="headrace")):
        for text in (command.help or "", command.epilog or ""):
            for line in text.replace("\\\n", " ").splitlines():
                for part in line.strip().split(" | "):
                    if part.startswith("headrace ") and not _SHORTENED.search(part):
                        yield Command(path, part, False)


def _all_commands(
    command: click.Command, ctx: click.Context
) -> Iterator[tuple[str, click.Command]]:
    yield ctx.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _all_commands(below, click.Context(below, parent=ctx, info_name=name))


def codes() -> Iterator[Code]:
    """All blocks of Python of all pages."""
    for page in PAGES:
        for language, text in blocks(page):
            if language == "python" or (not language and re.match(r"(from|import) \w", text)):
                yield Code(str(page.relative_to(ROOT)), text)


def words(text: str) -> list[str]:
    """The arguments of a command, without comments and redirections."""
    found = shlex.split(text, comments=True)
    return found[: next((at for at, word in enumerate(found) if word in {">", "<", "&"}), None)]


def parse(arguments: list[str]) -> None:
    """Parse what follows `headrace`, running nothing. Raises click.UsageError."""
    command: click.Command = cli
    ctx = cli.make_context("headrace", [*arguments], resilient_parsing=False)
    while isinstance(command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        if not rest:
            raise click.MissingParameter("a command", ctx=ctx, param_type="argument")
        _, found, rest = command.resolve_command(ctx, rest)
        assert found is not None
        name = found.name or ""
        command = found
        ctx = command.make_context(name, rest, parent=ctx)
