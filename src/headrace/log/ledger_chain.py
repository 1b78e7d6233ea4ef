"""The chain of ledgers that forms a partition, stored in the metadata store.

Invariants: the stored PartitionFact changes only by compare-and-set. A ledger is added to the chain
before its first append, with the lowest offset it could begin at; its actual base is the end of the
one before, and is recorded when that one is sealed. So a crash at any point leaves a chain from
which every offset follows. In each leader epoch only one broker changes the fact; a conflict
therefore means a newer owner, or a change of its own whose response was lost. Such a change stands
if undoing it would name bytes that may have been deleted since; other changes are overwritten.
A change in its epoch that is not its own, such as a repair's, is never overwritten.

A chain is written together with its partition and deleted after its topic. So a missing chain was
lost: starting a new one would lose every record and reuse offsets. It counts as corruption
(ChainMissing), and so does a stored chain that the ledgers prove to be outdated.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import (
    ChainMissing,
    DataCorrupt,
    FormatUnsupported,
    MetadataUnavailable,
    NotOwner,
    VersionConflict,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    LedgerLink,
    PartitionFact,
    companion_number,
    partition_key,
)
from headrace.metadata.store import ABSENT, MetadataEntry, MetadataStore, MultiOperation
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from headrace.log.segment import Segment
    from headrace.metadata.facts import CompanionKind

log = logging.getLogger(__name__)

OBJECT_KEPT_MS_MIN = 3600 * 1000
OBJECT_KEPT_MS_MAX = 30 * 24 * 3600 * 1000
"""Limits of the wait until the table is asked again for what it could not replace: an attempt may
read a quarter of the ledger."""
ATTEMPTS_MAX = 16
"""Limit for a change: it competes only with one former owner and its own changes in doubt."""


class ChainEvidence(Protocol):
    """What the ledgers' labels show about chains, if the store keeps labels."""

    async def unnamed(
        self, topic_id: UUID, partition: int, fact: PartitionFact | None
    ) -> Sequence[LedgerId]:
        """Ledgers with records of a partition that its chain (None: missing) should name.

        Raises StorageUnavailable, MetadataUnavailable.
        """
        ...

    async def lost_names(self, name: str) -> Collection[str]:
        """The names of topics whose fact was lost; up to date for `name`.

        Raises StorageUnavailable, MetadataUnavailable.
        """
        ...


class Acknowledged(NamedTuple):
    """What a broker has acknowledged of a partition."""

    ledger: LedgerId | None = None
    """With the last record. Its base offset would not do: that of a ledger which was created ahead
    is preliminary in the chain until the one before it is sealed."""
    end_offset: int = 0


def sealed_end(fact: PartitionFact) -> int:
    """The offset up to which the ledgers of a chain are sealed; an open one begins there."""
    end = fact.end_offset_or_none
    last = fact.ledgers[-1].base_offset if fact.ledgers else 0
    return max(fact.log_start_offset, last) if end is None else end


class LedgerChain:
    """The stored fact of one partition and its version."""

    def __init__(
        self,
        metadata: MetadataStore,
        topic_id: UUID,
        partition: int,
        evidence: ChainEvidence | None = None,
    ) -> None:
        self._metadata = metadata
        self._evidence = evidence
        self._partition = partition
        self.topic_id = topic_id
        self.is_expected = False
        """Whether it was written with the partition, and therefore must exist."""
        self._key = partition_key(topic_id, partition)
        self._version = ABSENT
        self.fact = PartitionFact()
        self._is_retired = False
        self._lost: ChainMissing | None = None
        self._in_doubt: dict[bytes, Callable[[], None] | None] = {}
        """Digest of each value that may be stored -> callback if it is."""
        self._named: tuple[PartitionFact, int] | None = None
        """The fact with this tenure's epoch, and its version, if seen before the claim."""
        self._foreseeing: asyncio.Event | None = None
        """Set when the read by `foresee` in progress has ended."""
        self._is_claimed = False
        self.acknowledged = Acknowledged()
        """In earlier tenures of this broker."""

    def retire(self) -> None:
        """Make no further changes: the tenure is over, but steps may still be running."""
        self._is_retired = True

    def labels(self, name: str, leader_epoch: int, *, is_ahead: bool) -> dict[str, bytes]:
        """The labels of a ledger, by which a lost chain can be rebuilt. Do not change: stored.

        `is_ahead`: it is not in a chain yet, and may never be.
        """
        labels = {
            "partition": name.encode(),
            "topic": self.topic_id.hex.encode(),
            "epoch": b"%d" % leader_epoch,
        }
        return {**labels, "ahead": b"1"} if is_ahead else labels

    @property
    def version(self) -> int:
        """The version of the stored fact when last read or written."""
        return self._version

    async def load(self) -> PartitionFact:
        """Read the fact; an empty one if an earlier version did not write it.

        Raises ChainMissing if it must exist.
        """
        entry = await self._metadata.get(self._key)
        if entry is not None:
            self.fact = self._decoded(entry)
            self._version = entry.version
        elif self.is_expected or self._version != ABSENT:
            raise self.lost()
        return self.fact

    def _decoded(self, entry: MetadataEntry) -> PartitionFact:
        """Raises ChainMissing if it cannot be decoded: damage of this partition only."""
        try:
            return PartitionFact.decode(entry.value)
        except (DataCorrupt, FormatUnsupported) as error:
            raise self.lost(f"cannot be decoded ({error})") from error

    def lost(self, why: str = "is missing") -> ChainMissing:
        """Mark the chain as lost, so that nothing overwrites it; returns the error to raise."""
        self._lost = ChainMissing(
            f"the ledger chain {self._key} {why}: the partition is not served, since its records"
            " would be lost and their offsets reused; run `headrace cluster verify`, then rebuild"
            " the chain with `headrace cluster repair`, or restore the metadata",
            key=self._key,
        )
        return self._lost

    async def _check_evidence(self, leader_epoch: int) -> None:
        """Raises ChainMissing if ledgers or the leader epoch show that the chain is outdated."""
        if self._evidence is None:
            return
        known = None if self._version == ABSENT else self.fact
        ledgers = await self._evidence.unnamed(self.topic_id, self._partition, known)
        if ledgers:
            shown = ", ".join(map(str, ledgers[:8])) + (" ..." if len(ledgers) > 8 else "")
            why = "is missing" if known is None else "is older than its ledgers"
            raise self.lost(f"{why} (it does not name ledger {shown}, which has records of it)")
        if known is None and leader_epoch > 1:  # all owners but the first write their epoch
            raise self.lost()

    def check_end(self, end_offset: int, acknowledged: int = 0) -> None:
        """Raises ChainMissing if the log ends before what this broker has acknowledged, in this
        tenure or before: the stored chain has lost changes, and perhaps the ledgers' metadata."""
        known = max(acknowledged, self.acknowledged.end_offset)
        if end_offset < known:
            raise self.lost(
                f"does not reach offset {known}, up to which this broker has acknowledged records"
                " (it forgets that when it is restarted)"
            )

    def _check_acknowledged(self) -> None:
        """As `check_end`, before the epoch is written, by which a repair knows later ledgers."""
        may_hold_rest = (
            link.ledger == self.acknowledged.ledger and not link.is_sealed
            for link in self.fact.ledgers
        )
        if not any(may_hold_rest):
            self.check_end(sealed_end(self.fact))

    async def foresee(self, leader_epoch: int) -> None:
        """Wait until the former owner has started this tenure in the fact: saves `claim` a read.

        From then on only this tenure changes the fact. Raises MetadataUnavailable, DataCorrupt.
        """
        async for key in self._metadata.watch(self._key):
            if key != self._key:  # a longer key with the same prefix
                continue
            self._foreseeing = asyncio.Event()
            try:
                entry = await self._metadata.get(key)
            finally:
                self._foreseeing.set()
            fact = PartitionFact() if entry is None else decode_fact(PartitionFact, entry)
            if self._is_claimed:
                return
            if entry is not None and fact.leader_epoch == leader_epoch:
                self._named = fact, entry.version
                return

    async def claim(self, leader_epoch: int, ahead: LedgerId | None = None) -> PartitionFact:
        """Read the fact and write the epoch into it: then no former owner can change it.

        `ahead`, a ledger created for this tenure, is added to the chain with the epoch if the
        ledgers before it are sealed. Raises NotOwner if a newer owner has already written its
        epoch, ChainMissing, MetadataUnavailable.
        """
        if self._foreseeing is not None:
            await self._foreseeing.wait()
        self._is_claimed = True
        named, self._named = self._named, None
        for attempt in range(ATTEMPTS_MAX):
            if not attempt and named is not None:
                self.fact, self._version = named
            else:
                await self.load()
            if self._is_retired or self.fact.leader_epoch > leader_epoch:
                raise self._not_owner(leader_epoch)
            self._check_acknowledged()
            if not attempt:
                await self._check_evidence(leader_epoch)
            if self.fact.leader_epoch == leader_epoch and self._version != ABSENT:
                return self.fact
            fact = replace(self.fact, leader_epoch=leader_epoch)
            if ahead is not None and fact.end_offset_or_none is not None:
                link = LedgerLink(ahead, fact.end_offset_or_none, leader_epoch)
                fact.ledgers = [*fact.ledgers, link]
            try:
                self._version = await self._metadata.put(self._key, fact.encode(), self._version)
            except VersionConflict:  # the former owner's last change, or our own in doubt
                continue
            self.fact = fact
            return fact
        raise MetadataUnavailable(f"{self._key} keeps changing: try again")

    async def _store(
        self,
        change: Callable[[PartitionFact], PartitionFact | None],
        stored: Callable[[], None] | None = None,
    ) -> bool:
        """Store the result of `change`; returns False if that is None.

        `stored` is given for a change that must not be undone once stored. It is called when that
        is known: before this returns or, if this raises, in a later call.
        """
        for _ in range(ATTEMPTS_MAX):
            if self._lost is not None:
                raise self._lost
            fact = change(self.fact)
            if fact is None:
                return False
            if self._is_retired:
                raise self._not_owner(fact.leader_epoch)
            assert fact.leader_epoch == self.fact.leader_epoch, "only a claim changes the epoch"
            assert fact.log_start_offset >= self.fact.log_start_offset, "the start only advances"
            value = fact.encode()
            self._in_doubt[_digest(value)] = stored
            try:
                self._version = await self._metadata.put(self._key, value, self._version)
            except VersionConflict:
                if not await self._catch_up(value, fact):
                    continue
            self.fact = fact
            self._in_doubt.clear()  # the others expected an older version
            if stored is not None:
                stored()
            return True
        raise MetadataUnavailable(f"{self._key} keeps changing: try again")

    async def _catch_up(self, value: bytes, fact: PartitionFact) -> bool:
        """After a conflict, read the stored version; returns whether `value` is stored."""
        entry = await self._metadata.get(self._key)
        if entry is None:
            raise self.lost("was deleted while the partition was served") from None
        found = self._decoded(entry)
        if found.leader_epoch != fact.leader_epoch:
            raise self._not_owner(fact.leader_epoch) from None
        if entry.value != value:
            digest = _digest(entry.value)
            if digest not in self._in_doubt:
                raise self.lost("was changed while the partition was served") from None
            stored = self._in_doubt[digest]
            self._in_doubt.clear()
            if stored is not None:
                self.fact = found
                stored()
        self._version = entry.version
        return entry.value == value

    def _not_owner(self, leader_epoch: int) -> NotOwner:
        return NotOwner(
            f"another broker owns {self._key} since epoch {leader_epoch}: refresh metadata"
        )

    async def add(self, segment: Segment) -> None:
        """Add a new, empty ledger to the chain. Raises NotOwner, MetadataUnavailable."""
        link = LedgerLink(segment.ledger, segment.base_offset, segment.leader_epoch)
        await self._store(lambda fact: replace(fact, ledgers=[*fact.ledgers, link]))

    async def add_companion(self, kind: CompanionKind) -> None:
        """Create the chain of a companion log, then record that it exists.

        Raises as `add` does.
        """
        if self.fact.has_companion(kind):
            return
        key = partition_key(self.topic_id, companion_number(self._partition, kind))
        try:
            await self._metadata.put(key, PartitionFact().encode(), ABSENT)
        except VersionConflict:  # created before, but not recorded
            log.debug("%s already exists", key)
        await self._store(lambda fact: fact.with_companion(kind))

    async def sealed(self, segment: Segment) -> None:
        """Record the end of a sealed ledger, and with it the base of the next one."""
        await self._store(lambda fact: _with_seal(fact, segment))

    def next_tenure(
        self, segment: Segment | None, leader_epoch: int, ahead: LedgerId
    ) -> MultiOperation | None:
        """The change that ends this tenure and starts the next owner's, equivalent to its claim.

        `segment` was sealed last, `ahead` was created by the next owner. None if an earlier ledger
        is still open: then the next owner must recover it. Writes nothing.
        """
        fact = self.fact if segment is None else _with_seal(self.fact, segment)
        if fact is None or self._is_retired or self._lost is not None:
            return None
        end_offset = fact.end_offset_or_none
        if end_offset is None or self._version == ABSENT or fact.leader_epoch >= leader_epoch:
            return None
        link = LedgerLink(ahead, end_offset, leader_epoch)
        fact = replace(fact, leader_epoch=leader_epoch, ledgers=[*fact.ledgers, link])
        return MultiOperation(self._key, fact.encode(), self._version)

    async def offloaded(self, ledger: LedgerId, now_ms: int) -> bool:
        """Record that object storage has a complete, verified copy; False if it was trimmed."""

        def change(link: LedgerLink) -> LedgerLink:
            assert link.is_sealed, "only sealed ledgers are offloaded"
            return replace(link, offloaded_ms=now_ms)

        return await self._change({ledger}, change)

    async def local_deleted(self, ledgers: set[LedgerId], now_ms: int) -> None:
        """Record that the copies in object storage will be the only ones."""

        def change(link: LedgerLink) -> LedgerLink:
            return replace(link, local_deleted_ms=now_ms)

        # Must not be undone, since the bytes may then be deleted. The caller retries on failure.
        await self._change(ledgers, change, lambda: None)

    async def tabled(self, ledger: LedgerId, now_ms: int) -> bool:
        """Record that a ledger's recipe replaces its object, which may then be deleted; False if it
        was trimmed."""

        def change(link: LedgerLink) -> LedgerLink:
            assert link.local_deleted_ms is not None, "the object is the only copy"
            return replace(
                link, tabled_ms=now_ms, object_kept_until_ms=None, object_kept_wait_ms=None
            )

        return await self._change({ledger}, change, lambda: None)

    async def object_kept(self, ledger: LedgerId, now_ms: int) -> int | None:
        """Record that the table cannot replace a ledger's object; returns the time before which
        that is not to be tried again, None if the ledger was trimmed.

        The first wait is OBJECT_KEPT_MS_MIN, also after one that an earlier version stored without
        its length; each is twice as long as the one before, up to OBJECT_KEPT_MS_MAX.
        """
        until_ms = 0

        def change(link: LedgerLink) -> LedgerLink:
            nonlocal until_ms
            doubled_ms = 2 * (link.object_kept_wait_ms or 0)
            wait_ms = min(max(doubled_ms, OBJECT_KEPT_MS_MIN), OBJECT_KEPT_MS_MAX)
            until_ms = now_ms + wait_ms
            return replace(link, object_kept_until_ms=until_ms, object_kept_wait_ms=wait_ms)

        return until_ms if await self._change({ledger}, change) else None

    async def _change(
        self,
        ledgers: set[LedgerId],
        change: Callable[[LedgerLink], LedgerLink],
        stored: Callable[[], None] | None = None,
    ) -> bool:
        def changed(fact: PartitionFact) -> PartitionFact | None:
            if all(link.ledger not in ledgers for link in fact.ledgers):
                return None
            links = [change(link) if link.ledger in ledgers else link for link in fact.ledgers]
            return replace(fact, ledgers=links)

        return await self._store(changed, stored)

    async def replace(
        self, old: Sequence[LedgerId], link: LedgerLink, stored: Callable[[], None]
    ) -> bool:
        """Replace ledgers by one that contains what compaction retained of them.

        Both have the same offset range. False if the chain no longer names the old ledgers.
        `stored` is called once it is known that the chain names the new ledger. If this raises,
        either may be named, so the bytes of neither may be deleted; a later change resolves it.
        """

        def changed(fact: PartitionFact) -> PartitionFact | None:
            links = fact.ledgers
            at = next((i for i, one in enumerate(links) if one.ledger == old[0]), len(links))
            replaced = links[at : at + len(old)]
            if [one.ledger for one in replaced] != list(old):
                return None
            assert replaced[0].base_offset == link.base_offset, "the base offset is unchanged"
            assert replaced[-1].end_offset == link.end_offset, "the end offset is unchanged"
            return replace(fact, ledgers=[*links[:at], link, *links[at + len(old) :]])

        return await self._store(changed, stored)

    async def cleaned(self, offset: int) -> None:
        """Record that one record per key is left before `offset`."""
        await self._store(lambda fact: replace(fact, cleaned_offset=offset))

    async def trim(
        self,
        log_start_offset: int,
        gone: set[LedgerId],
        base_offsets: Mapping[LedgerId, int],
        stored: Callable[[], None],
    ) -> None:
        """Advance the log start offset and remove the ledgers in `gone` from the chain.

        `base_offsets` are the actual base offsets: if a seal failed, the next ledger's base is
        recorded here at the latest, before the end of the one before is removed. For `stored` see
        `replace`.
        """

        def changed(fact: PartitionFact) -> PartitionFact:
            kept = [
                replace(link, base_offset=base_offsets.get(LedgerId(link.ledger), link.base_offset))
                for link in fact.ledgers
                if link.ledger not in gone
            ]
            start = max(fact.log_start_offset, log_start_offset)
            return replace(fact, log_start_offset=start, ledgers=kept)

        await self._store(changed, stored)


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()


def _with_seal(fact: PartitionFact, segment: Segment) -> PartitionFact | None:
    ledgers = list(fact.ledgers)
    at = next((i for i, link in enumerate(ledgers) if link.ledger == segment.ledger), None)
    if at is None:  # already removed by retention
        return None
    ledgers[at] = replace(
        ledgers[at],
        base_offset=segment.base_offset,
        first_timestamp_ms=segment.first_append_ms,
        size_bytes=segment.end_position,
        end_offset=segment.end_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
    )
    if at + 1 < len(ledgers):
        # Above the end if the tail was lost below the log start offset.
        base_offset = max(segment.end_offset, ledgers[at + 1].base_offset)
        ledgers[at + 1] = replace(ledgers[at + 1], base_offset=base_offset)
    return replace(fact, ledgers=ledgers)
