"""The users in a metadata store, without a broker: how the first one comes to be.

Invariants: whoever can open the metadata is trusted with all of it. Brokers that run see a change
at once, as they see each other's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.security.users import Users
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.sqlite_file import METADATA
from headrace.metadata.user_facts import USERS
from headrace.runtime.clock import SystemClock
from headrace.storage.files.store import FileLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.metadata.store import MetadataStore


@asynccontextmanager
async def open_users(place: Path | ClusterSettings) -> AsyncIterator[Users]:
    """The users of a stand-alone broker's data directory, which is created if it is missing, or of
    a cluster. Raises MetadataUnavailable, and the errors of the stores."""
    if isinstance(place, Path):
        await _create(place)
        store = await SqliteMetadataStore.open(place / METADATA, SystemClock())
        try:
            yield await _read(store)
        finally:
            await store.close()
        return
    from headrace.administration.cluster import open_metadata

    async with open_metadata(place) as (_zookeeper, metadata):
        yield await _read(metadata)


async def _create(data_dir: Path) -> None:
    """Create the data directory of a broker that has never run."""
    if not (data_dir / METADATA).exists():
        ledgers = await FileLedgerStore.open(data_dir, SystemClock())
        await ledgers.close()


async def _read(store: MetadataStore) -> Users:
    users = Users(store)
    for entry in await store.list(USERS):
        users.apply(entry.key, entry)
    return users
