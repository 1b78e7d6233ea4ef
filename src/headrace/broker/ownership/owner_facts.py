"""Writes owner facts, those of one loop turn together.

Invariants: an owner is written by compare-and-set over the known one; if another broker was faster,
its fact enters the view. What is written is decided elsewhere.

How it works: the writes of one turn of the loop share few metadata transactions, since a takeover
changes hundreds of owners at once and each round trip costs both ends. If one write of a batch
conflicts, the store rejects the whole batch, and each is written by itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError, NotOwner, VersionConflict
from headrace.log.fencing import EPOCH_OF_DELETED
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    BrokerFact,
    OwnerFact,
    PartitionFact,
    broker_key,
    owner_key,
    partition_key,
)
from headrace.metadata.store import ABSENT, MultiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.ownership.cluster_view import ClusterView, Owner
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataEntry, MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BUNDLE_MAX = 128
"""Owners per transaction: about 20 KB, which a server applies in a millisecond or two."""
BUNDLE_BYTES_MAX = 256 << 10
"""Per transaction, unless one owner and its chain need more: ZooKeeper rejects a request of 1 MiB
(`jute.maxbuffer`), and the chain of a partition with thousands of ledgers takes hundreds of KiB."""
_OPERATION_BYTES = 64
"""Overhead of an operation besides key and value; a generous estimate."""


class _Write(NamedTuple):
    key: PartitionKey
    fact: OwnerFact
    owner: MultiOperation
    chain: MultiOperation | None
    is_written: asyncio.Future[bool]

    @property
    def operations(self) -> list[MultiOperation]:
        """The owner's operation first."""
        return [self.owner] if self.chain is None else [self.owner, self.chain]

    @property
    def size_bytes(self) -> int:
        """Approximate size in the request."""
        return sum(
            len(one.key) + len(one.value or b"") + _OPERATION_BYTES for one in self.operations
        )


class OwnerFacts:
    """Writes owner facts for one broker."""

    def __init__(self, view: ClusterView, metadata: MetadataStore, tasks: Tasks) -> None:
        self._view = view
        self._metadata = metadata
        self._tasks = tasks
        self._asked: list[_Write] = []
        self._registrations: dict[int, asyncio.Task[MetadataEntry | None]] = {}
        """Being read, by broker; only for callers of the turn in which the read was started."""

    async def prove_ended(self, owner: OwnerFact, mine: str) -> None:
        """Make sure that the tenure in this fact, which this broker knows, is over: it is of the
        incarnation `mine`, or the registration of its owner, read now, does not exist. Raises
        NotOwner if it does, MetadataUnavailable, DataCorrupt.

        The view of live brokers does not prove that: it may be older than the fact. A read that
        begins after the fact was read sees a later state of the store (ZooKeeper never shows a
        client an older one), and an incarnation whose registration has been absent claims all its
        partitions anew (`EndedTenures.end_all_of`).
        """
        if owner.incarnation == mine:
            return
        reading = self._registrations.get(owner.broker)
        if reading is None:
            name = f"registration of broker {owner.broker}"
            reading = self._tasks.start(self._metadata.get(broker_key(owner.broker)), name)
            self._registrations[owner.broker] = reading
            asyncio.get_running_loop().call_soon(self._registrations.pop, owner.broker)
        entry = await asyncio.shield(reading)
        if entry is not None and decode_fact(BrokerFact, entry).incarnation == owner.incarnation:
            raise NotOwner(f"broker {owner.broker}, its owner, lives: looking again")

    async def first_epoch(self, topic: Topic, number: int) -> int:
        """The epoch of a partition without an owner fact: the one after its chain's, if the fact
        was lost."""
        entry = await self._metadata.get(partition_key(topic.id, number))
        epoch = 0 if entry is None else decode_fact(PartitionFact, entry).leader_epoch
        if not epoch or epoch >= EPOCH_OF_DELETED:  # deleted: reading the log refuses it
            return 0
        message = "the owner fact of %s-%d was lost: claiming it after epoch %d"
        log.warning(message, topic.name, number, epoch)
        return epoch + 1

    async def write(
        self,
        key: PartitionKey,
        fact: OwnerFact,
        known: Owner | None,
        chain: MultiOperation | None = None,
    ) -> bool:
        """Write an owner over the known one; False if another broker was faster.

        `chain`: a change of the partition's chain, applied atomically with the owner's. Raises
        MetadataUnavailable: the write may have been applied.
        """
        loop = asyncio.get_running_loop()
        is_written: asyncio.Future[bool] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._send)
        version = ABSENT if known is None else known.version
        owner = MultiOperation(owner_key(*key), fact.encode(), version)
        self._asked.append(_Write(key, fact, owner, chain, is_written))
        return await is_written

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        for bundle in _bundles(asked):
            self._tasks.spawn(self._write_bundle(bundle), "write owners")

    async def _write_bundle(self, bundle: Sequence[_Write]) -> None:
        try:
            try:
                operations = [operation for one in bundle for operation in one.operations]
                versions = iter(await self._metadata.multi(operations))
            except VersionConflict:
                await asyncio.gather(*map(self._write_one, bundle))
                return
            for one in bundle:
                self._view.own(one.key, one.fact, next(versions))
                if one.chain is not None:
                    next(versions)
                _resolve(one, result=True)
        except HeadraceError as error:
            # one exception each: a shared instance would collect the tracebacks of all
            for one in bundle:
                _fail(one, type(error)(str(error), **error.fields))
        finally:
            for one in bundle:  # cancelled: the broker is stopping
                one.is_written.cancel()

    async def _write_one(self, one: _Write) -> None:
        try:
            versions = await self._metadata.multi(one.operations)
            self._view.own(one.key, one.fact, versions[0])
            _resolve(one, result=True)
        except VersionConflict:
            try:
                entry = await self._metadata.get(owner_key(*one.key))
                if entry is not None:
                    self._view.own(one.key, decode_fact(OwnerFact, entry), entry.version)
                _resolve(one, result=False)
            except HeadraceError as error:
                _fail(one, error)
        except HeadraceError as error:
            _fail(one, error)


def _bundles(asked: Sequence[_Write]) -> list[list[_Write]]:
    """Split into batches that fit into one transaction."""
    bundles: list[list[_Write]] = []
    room = 0
    for one in asked:
        size = one.size_bytes
        if not bundles or size > room or len(bundles[-1]) == BUNDLE_MAX:
            bundles.append([])
            room = BUNDLE_BYTES_MAX
        bundles[-1].append(one)
        room -= size
    return bundles


def _resolve(one: _Write, *, result: bool) -> None:
    if not one.is_written.done():
        one.is_written.set_result(result)


def _fail(one: _Write, error: HeadraceError) -> None:
    if not one.is_written.done():
        one.is_written.set_exception(error)
