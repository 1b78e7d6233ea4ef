"""`headrace backup` and `headrace restore`: the data of a stand-alone broker.

Invariants: `headrace.server.backup` copies and checks; this module has options and messages. Only
the owner can read what is written.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.failures import CommandFailed
from headrace.cli.output import AS_JSON, print_json, size_text
from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from headrace.server.backup import Done

_OWNER_ONLY_UMASK = 0o077
DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("./headrace-data"),
    envvar="HEADRACE_DATA_DIR",
    show_default=True,
    show_envvar=True,
    help="The broker's data directory.",
)


@click.command(epilog="Examples:\n\n  headrace backup /backup/monday --data-dir /var/lib/headrace")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@DATA_DIR
@AS_JSON
def backup(folder: Path, data_dir: Path, as_json: bool) -> None:
    """Copy a broker's data to DIR, which must not exist or be empty. The broker may run.

    The copy is the state of one moment after the command began: all records acknowledged before are
    in it, with topics, groups, positions and users. With --workers it is one moment for each
    worker: positions may be ahead of another worker's records. It is checked for damage. Data that
    is only in object storage is not copied. A cluster's data is in BookKeeper and ZooKeeper.
    """
    os.umask(_OWNER_ONLY_UMASK)
    from headrace.server.backup import back_up

    try:
        done = back_up(data_dir, folder, version("headrace"), SystemClock().now_ms())
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    _report(done, "backed up to", as_json=as_json)


@click.command(epilog="Examples:\n\n  headrace restore /backup/monday --data-dir /var/lib/headrace")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True))
@DATA_DIR
@AS_JSON
def restore(folder: Path, data_dir: Path, as_json: bool) -> None:
    """Make a data directory of the backup in DIR; it must not exist or be empty.

    Every file is compared with its digest, and the result is checked for damage. Start a broker on
    it with `headrace serve --data-dir`. Consumers that were ahead of the backup find their
    positions beyond the end, and begin by their `auto.offset.reset`.
    """
    os.umask(_OWNER_ONLY_UMASK)
    from headrace.server import backup as backups

    try:
        done = backups.restore(folder, data_dir)
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    _report(done, "restored to", as_json=as_json)


def _report(done: Done, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json({**done._asdict(), "folder": str(done.folder)})
        return
    click.echo(
        f"{verb} {done.folder}: {done.records:,} records in {done.logs} logs, {done.files} files,"
        f" {size_text(done.size_bytes)}; checked, no damage"
    )
