"""`headrace backup` and `headrace restore`: the data of a stand-alone broker.

Invariants: `headrace.administration.broker_backup` copies and checks; this module has options and
messages. Only the owner can read what is written.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import click

from headrace.cli.failures import CommandFailed
from headrace.cli.output import AS_JSON, counted, print_json, size_text, tell
from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.administration.backup_place import Place
    from headrace.administration.broker_backup import Done

OWNER_ONLY_UMASK = 0o077
DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("./headrace-data"),
    envvar="HEADRACE_DATA_DIR",
    show_default=True,
    show_envvar=True,
    help="The broker's data directory.",
)


STAGING = click.option(
    "--staging",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="With a URL: where the copy is made and checked before it is uploaded. Default: the"
    " system's temporary directory.",
)


def is_url(place: str) -> bool:
    """Whether a place is a URL of object storage, not a directory."""
    return "://" in place


@contextmanager
def opened_place(place: str) -> Iterator[Place]:
    """The place to restore from. Raises CommandFailed, also for errors within."""
    from headrace.administration.backup_place import FolderPlace, ObjectPlace

    try:
        yield ObjectPlace(place) if is_url(place) else FolderPlace(Path(place))
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error


@click.command(
    epilog="Examples:\n\n  headrace backup /backup/monday --data-dir /var/lib/headrace"
    "\n\n  headrace backup s3://backups/monday --data-dir /var/lib/headrace"
)
@click.argument("place", metavar="DIR|URL")
@DATA_DIR
@STAGING
@AS_JSON
def backup(place: str, data_dir: Path, staging: Path | None, as_json: bool) -> None:
    """Copy a broker's data to DIR, which must not exist or be empty. The broker may run.

    The copy is the state of one moment after the command began: all records acknowledged before are
    in it, with topics, groups, positions and users. With --workers it is one moment for each
    worker: positions may be ahead of another worker's records. It is checked for damage. Data that
    is only in object storage is not copied. For a cluster, see `headrace cluster backup`.

    A URL (s3://bucket/prefix, gs://, az://, file:///) names object storage, where nothing may be
    under the prefix yet; its credentials come from the environment, as for `serve --objects`. The
    copy is made in --staging, uploaded, and read back.
    """
    os.umask(OWNER_ONLY_UMASK)
    from headrace.administration import broker_backup as backups

    now_ms, own = SystemClock().now_ms(), version("headrace")
    try:
        if is_url(place):
            staging = staging or Path(gettempdir())
            done = backups.back_up_to_url(data_dir, place, staging, own, now_ms)
        else:
            done = backups.back_up(data_dir, Path(place), own, now_ms)
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    _report(done, "backed up to", as_json=as_json)


@click.command(epilog="Examples:\n\n  headrace restore /backup/monday --data-dir /var/lib/headrace")
@click.argument("place", metavar="DIR|URL")
@DATA_DIR
@AS_JSON
def restore(place: str, data_dir: Path, as_json: bool) -> None:
    """Make a data directory of the backup at DIR or URL; it must not exist or be empty.

    Every file is compared with its digest, and the result is checked for damage. Start a broker on
    it with `headrace serve --data-dir`. Consumers that were ahead of the backup find their
    positions beyond the end, and begin by their `auto.offset.reset`.
    """
    os.umask(OWNER_ONLY_UMASK)
    from headrace.administration import broker_backup as backups

    with opened_place(place) as source:
        done = backups.restore(source, data_dir)
    _report(done, "restored to", as_json=as_json)


def _report(done: Done, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(done._asdict())
        return
    tell(
        f"{verb} {done.folder}: {counted(done.records, 'record')} in {counted(done.logs, 'log')},"
        f" {counted(done.files, 'file')}, {size_text(done.size_bytes)}; checked, no damage"
    )
