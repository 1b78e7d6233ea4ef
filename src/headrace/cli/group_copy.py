"""`headrace group export` and `import`: a group's offsets as JSON.

Invariants: an import changes nothing unless every partition exists, every offset lies within its
log, and the group has no members.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any, Final

import click

from headrace.cli.failures import CONFLICT, NOT_FOUND, USAGE, CommandFailed
from headrace.cli.group_listing import SHARE, type_of
from headrace.cli.group_reset import DRY_RUN, OffsetChange, apply_moves, refuse_active
from headrace.cli.lag import first_unread, progress
from headrace.cli.names import GROUP_NAME, key_in
from headrace.cli.output import AS_JSON, print_json
from headrace.cli.positions import Bounds, Partition, log_bounds
from headrace.records.tenant_names import key_of

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

VERSION: Final = 1
"""Of the document: do not change the meaning of its fields."""


@click.command("export")
@click.argument("name", metavar="GROUP", type=GROUP_NAME)
@click.pass_obj
def export(session: CliSession, /, name: str) -> None:
    """Write the offsets of GROUP to stdout, as JSON for `headrace group import`.

    \b
    Example:
      headrace group export billing > billing.json
    """
    kind = type_of(session, name)
    found = progress(session, name, kind)
    if kind is None and not found:
        raise session.no_group(name)
    print_json(
        {
            "version": VERSION,
            "cluster": session.identify(),
            "group": name,
            "type": kind,
            "offsets": [
                {"topic": p.topic, "partition": p.number, "offset": offset}
                for p, offset in sorted(found.items())
            ],
        }
    )


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--as", "name", type=GROUP_NAME, metavar="GROUP", help="Default: the group's name in FILE."
)
@DRY_RUN
@AS_JSON
@click.pass_obj
def import_(session: CliSession, /, file: str, name: str | None, **options: Any) -> None:
    """Set a group's offsets to those in FILE (-: stdin). Its consumers must be stopped.

    \b
    Examples:
      headrace group import billing.json --dry-run
      headrace group export billing | headrace group import - --as billing-2
    """
    with click.open_file(file, encoding="utf-8") as document:
        given, wanted = _read(document)
    name = name or key_in(session, given)
    kind = type_of(session, name)
    if kind != SHARE:
        refuse_active(session, name)
    bounds = _bounds(session, wanted)
    before = progress(session, name, kind)
    moves = [
        OffsetChange(p, before.get(p), offset, offset - first_unread(before.get(p), bounds[p]))
        for p, offset in sorted(wanted.items())
    ]
    apply_moves(session, name, kind, moves, options)


def _read(file: IO[str]) -> tuple[str, dict[Partition, int]]:
    """The group and the offsets of a document. Raises CommandFailed."""
    try:
        document = json.load(file)
        if document["version"] != VERSION:
            raise ValueError(f"its version is {document['version']!r}")
        offsets = {
            Partition(key_of(str(one["topic"])), int(one["partition"])): int(one["offset"])
            for one in document["offsets"]
        }
        return str(document["group"]), offsets
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(
            f"{file.name} is not an export of a group ({error}); nothing was changed",
            "Make one with: headrace group export GROUP",
            USAGE,
        ) from None


def _bounds(session: CliSession, wanted: dict[Partition, int]) -> dict[Partition, Bounds]:
    """Raises CommandFailed if a partition does not exist or an offset is not in its log."""
    numbers = {topic: session.partitions_of(topic) for topic in {p.topic for p in wanted}}
    for topic, number in wanted:
        if number not in numbers[topic]:
            raise CommandFailed(
                f"topic {topic!r} has no partition {number}; nothing was changed",
                f"Add partitions: headrace topic alter {topic} --partitions {number + 1}",
                NOT_FOUND,
            )
    bounds = log_bounds(session, [*wanted])
    for p, offset in wanted.items():
        if not bounds[p].earliest <= offset <= bounds[p].latest:
            raise CommandFailed(
                f"offset {offset} is not in {p.topic}-{p.number}, which has"
                f" {bounds[p].earliest} to {bounds[p].latest}; nothing was changed",
                "Offsets of another cluster or of a topic that was created again do not fit: use"
                " headrace group reset --to TIME",
                CONFLICT,
            )
    return bounds
