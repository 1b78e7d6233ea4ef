"""`headrace cluster backup` and `restore`: a cluster's metadata, which is in ZooKeeper.

Invariants: `headrace.administration.cluster_backup` reads and writes; this module has options and
messages. Only the owner can read what is written.
"""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.backup import OWNER_ONLY_UMASK, is_url, opened_place
from headrace.cli.cluster_admin import where
from headrace.cli.failures import CommandFailed
from headrace.cli.output import AS_JSON, print_json, size_text, tell
from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from headrace.administration.cluster_backup import Done, Node, Roots
    from headrace.administration.cluster_settings import ClusterSettings


@click.command(epilog="Examples:\n\n  headrace cluster backup /backup/cluster-monday")
@click.argument("place", metavar="DIR|URL")
@AS_JSON
@where
def backup(settings: ClusterSettings, place: str, as_json: bool) -> None:
    """Copy a cluster's metadata to DIR, which must not exist or be empty, or to a URL.

    Copied are topics, chains of ledgers, settings, users and access rules, and BookKeeper's own
    metadata, from one moment. Brokers may run. Records stay in the bookies: a backup restores
    access to them if ZooKeeper's data is lost. Make one often, and keep it away from ZooKeeper.
    """
    os.umask(OWNER_ONLY_UMASK)
    from headrace.administration import cluster_backup as backups
    from headrace.administration.cluster import open_zookeeper

    async def read() -> list[Node]:
        async with open_zookeeper(settings) as zookeeper:
            return await backups.read_nodes(zookeeper, _roots(settings))

    now_ms, own = SystemClock().now_ms(), version("headrace")
    try:
        nodes = asyncio.run(read())
        if is_url(place):
            done = backups.back_up_to_url(nodes, place, own, now_ms)
        else:
            done = backups.back_up(nodes, Path(place), own, now_ms)
    except (HeadraceError, OSError) as error:
        raise CommandFailed(str(error)) from error
    _report(done, "backed up", "to", as_json=as_json)


@click.command(epilog="Examples:\n\n  headrace cluster restore /backup/cluster-monday")
@click.argument("place", metavar="DIR|URL")
@AS_JSON
@where
def restore(settings: ClusterSettings, place: str, as_json: bool) -> None:
    """Write the backup at DIR or URL into an empty ZooKeeper, and compare.

    Stop bookies and brokers before, and start them afterwards, the bookies first: bookies delete
    ledgers that ZooKeeper does not list. If brokers then report ledgers that the backup does not
    know, see `headrace cluster repair`.
    """
    from headrace.administration import cluster_backup as backups
    from headrace.administration.cluster import open_zookeeper

    async def write(nodes: list[Node], digest: str, shown: str) -> Done:
        async with open_zookeeper(settings) as zookeeper:
            return await backups.restore(zookeeper, _roots(settings), nodes, digest, shown)

    with opened_place(place) as source:
        nodes, digest = backups.load(source)
        shown = source.shown
    try:
        done = asyncio.run(write(nodes, digest, shown))
    except HeadraceError as error:
        raise CommandFailed(str(error)) from error
    _report(done, "restored", "from", as_json=as_json)


def _roots(settings: ClusterSettings) -> Roots:
    from headrace.administration.cluster_backup import Roots

    return Roots(settings.root, settings.ledgers_root)


def _report(done: Done, verb: str, where_from: str, *, as_json: bool) -> None:
    if as_json:
        print_json(done._asdict())
        return
    tell(
        f"{verb} cluster {done.cluster_id} {where_from} {done.place}: {done.facts:,} facts,"
        f" {done.ledger_nodes:,} nodes of BookKeeper, {size_text(done.size_bytes)}; compared"
    )
