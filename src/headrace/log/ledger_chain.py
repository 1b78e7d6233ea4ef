"""The chain of ledgers that makes up one partition, as it is kept in the metadata store.

Invariants: the stored PartitionFact changes by compare-and-set alone. A ledger enters the
chain before its first append, with the lowest offset that it could begin at; its true base is the
end of the one before, and is written down when that one is sealed. So a crash at any point leaves
a chain from which every offset follows. Within one leader epoch one broker alone changes the fact;
so a conflict means a newer owner, or a change of its own whose answer was lost. Such a change
counts where undoing it would name bytes that may have been deleted since; others are written over.
A change in its epoch that is not its own, such as a repair's, is never written over.

A chain is written together with its partition and deleted after its topic. So one that is missing
was lost: to begin a new one would lose every record and give its offsets again. That is damage
(ChainMissing), also where ledgers prove that the stored chain is older than what was written.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ChainMissing, MetadataUnavailable, NotOwner, VersionConflict
from headrace.metadata.facts import (
    LedgerLink,
    PartitionFact,
    companion_number,
    partition_key,
)
from headrace.metadata.store import ABSENT, MetadataStore, Operation
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from headrace.log.segment import Segment
    from headrace.metadata.facts import CompanionKind

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 16
"""Of a change: the rivals are one former owner and what this one is in doubt about."""


class ChainEvidence(Protocol):
    """What the ledgers themselves say of chains, where a store keeps their labels."""

    async def unnamed(
        self, topic_id: UUID, partition: int, fact: PartitionFact | None
    ) -> Sequence[LedgerId]:
        """Ledgers with records of a partition that its chain (None: missing) should name.

        Raises StorageUnavailable, MetadataUnavailable.
        """
        ...

    async def lost_names(self, name: str) -> Collection[str]:
        """The names of topics whose fact was lost; surely up to date as to `name`.

        Raises StorageUnavailable, MetadataUnavailable.
        """
        ...


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
        """Whether it was written with the partition: then it must be there."""
        self._key = partition_key(topic_id, partition)
        self._version = ABSENT
        self.fact = PartitionFact()
        self._is_retired = False
        self._lost: ChainMissing | None = None
        self._in_doubt: dict[bytes, Callable[[], None] | None] = {}
        """By the digest of their values: changes that may be stored, and what then follows."""
        self._named: tuple[PartitionFact, int] | None = None
        """The fact with this tenure's epoch, and its version, if it was seen before the claim."""
        self._foreseeing: asyncio.Event | None = None
        """Set when the read of `foresee` that is under way has ended."""
        self._is_claimed = False

    def retire(self) -> None:
        """Change nothing any more: the tenure is over, and steps of it may still be under way."""
        self._is_retired = True

    def labels(self, name: str, leader_epoch: int, *, is_ahead: bool) -> dict[str, bytes]:
        """What a ledger says of itself, so that a lost chain can be rebuilt. Do not change: stored.

        `is_ahead`: it is in no chain yet, and may never be.
        """
        labels = {
            "partition": name.encode(),
            "topic": self.topic_id.hex.encode(),
            "epoch": b"%d" % leader_epoch,
        }
        return {**labels, "ahead": b"1"} if is_ahead else labels

    @property
    def version(self) -> int:
        """The version of the stored fact that was read or written last."""
        return self._version

    async def load(self) -> PartitionFact:
        """Read the fact; an empty one where an earlier version never wrote it.

        Raises ChainMissing where it must be there.
        """
        entry = await self._metadata.get(self._key)
        if entry is not None:
            self.fact = PartitionFact.decode(entry.value)
            self._version = entry.version
        elif self.is_expected or self._version != ABSENT:
            raise self.lost()
        return self.fact

    def lost(self, why: str = "is missing") -> ChainMissing:
        """The error from now on: nothing is written over what was lost."""
        self._lost = ChainMissing(
            f"the chain of ledgers {self._key} {why}: the partition is not served, since its"
            " records would be lost and their offsets given again; look at `headrace cluster"
            " verify`, then rebuild the chain with `headrace cluster repair`, or restore the"
            " metadata",
            key=self._key,
        )
        return self._lost

    async def _check_evidence(self, leader_epoch: int) -> None:
        """Raises ChainMissing where ledgers, or the number of owners, say more than the chain."""
        if self._evidence is None:
            return
        known = None if self._version == ABSENT else self.fact
        ledgers = await self._evidence.unnamed(self.topic_id, self._partition, known)
        if ledgers:
            shown = ", ".join(map(str, ledgers[:8])) + (" ..." if len(ledgers) > 8 else "")
            why = "is missing" if known is None else "is older than its ledgers"
            raise self.lost(f"{why} (it does not name ledger {shown}, which has records of it)")
        if known is None and leader_epoch > 1:  # each owner after the first one writes its epoch
            raise self.lost()

    async def foresee(self, leader_epoch: int) -> None:
        """Wait until a former owner has begun this tenure in the fact: `claim` need not read it.

        From then on this tenure alone changes the fact. Raises MetadataUnavailable, DataCorrupt.
        """
        async for key in self._metadata.watch(self._key):
            if key != self._key:  # it begins alike
                continue
            self._foreseeing = asyncio.Event()
            try:
                entry = await self._metadata.get(key)
            finally:
                self._foreseeing.set()
            fact = PartitionFact() if entry is None else PartitionFact.decode(entry.value)
            if self._is_claimed:
                return
            if entry is not None and fact.leader_epoch == leader_epoch:
                self._named = fact, entry.version
                return

    async def claim(self, leader_epoch: int, ahead: LedgerId | None = None) -> PartitionFact:
        """Read the fact and write the epoch into it: from then on no former owner can change it.

        `ahead`, a ledger that was created for this tenure, enters the chain with the epoch if the
        ledgers before it are sealed. Raises NotOwner where a newer owner wrote its epoch already,
        ChainMissing, MetadataUnavailable.
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
            except VersionConflict:  # the former owner's last change, or one of ours in doubt
                continue
            self.fact = fact
            return fact
        raise MetadataUnavailable(f"{self._key} keeps changing: try again")

    async def _store(
        self,
        change: Callable[[PartitionFact], PartitionFact | None],
        stored: Callable[[], None] | None = None,
    ) -> bool:
        """Store what `change` makes of the fact; False where that is None.

        `stored` belongs to a change that must not be undone once it is stored. It is called when
        that is known: before this returns, or, where this raises, in a later call.
        """
        for _ in range(ATTEMPTS_MAX):
            if self._lost is not None:
                raise self._lost
            fact = change(self.fact)
            if fact is None:
                return False
            if self._is_retired:
                raise self._not_owner(fact.leader_epoch)
            value = fact.encode()
            self._in_doubt[_digest(value)] = stored
            try:
                self._version = await self._metadata.put(self._key, value, self._version)
            except VersionConflict:
                if not await self._catch_up(value, fact):
                    continue
            self.fact = fact
            self._in_doubt.clear()  # the others expected a version that is over
            if stored is not None:
                stored()
            return True
        raise MetadataUnavailable(f"{self._key} keeps changing: try again")

    async def _catch_up(self, value: bytes, fact: PartitionFact) -> bool:
        """After a conflict: take the stored version; whether `value` is what is stored."""
        entry = await self._metadata.get(self._key)
        if entry is None:
            raise self.lost("was deleted while the partition was served") from None
        found = PartitionFact.decode(entry.value)
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
            f"another broker owns {self._key} since epoch {leader_epoch}: refresh the metadata"
        )

    async def add(self, segment: Segment) -> None:
        """Append a new, empty ledger to the chain. Raises NotOwner, MetadataUnavailable."""
        link = LedgerLink(segment.ledger, segment.base_offset, segment.leader_epoch)
        await self._store(lambda fact: replace(fact, ledgers=[*fact.ledgers, link]))

    async def add_companion(self, kind: CompanionKind) -> None:
        """Begin the chain of a log beside this one, then note that it is there.

        Raises as `add` does.
        """
        if self.fact.has_companion(kind):
            return
        key = partition_key(self.topic_id, companion_number(self._partition, kind))
        try:
            await self._metadata.put(key, PartitionFact().encode(), ABSENT)
        except VersionConflict:  # begun before, and not noted
            log.debug("%s is there already", key)
        await self._store(lambda fact: replace(fact, companions=(fact.companions or 0) | 1 << kind))

    async def sealed(self, segment: Segment) -> None:
        """Write down where a sealed ledger ends, and so where the next one begins."""
        await self._store(lambda fact: _with_seal(fact, segment))

    def next_tenure(
        self, segment: Segment | None, leader_epoch: int, ahead: LedgerId
    ) -> Operation | None:
        """The change that ends this tenure and begins the next owner's, as its own claim would.

        `segment` was sealed last, `ahead` was created by the next owner. None where a ledger before
        that may still grow: then the next owner has to look. Nothing is written here.
        """
        fact = self.fact if segment is None else _with_seal(self.fact, segment)
        if fact is None or self._is_retired or self._lost is not None:
            return None
        end_offset = fact.end_offset_or_none
        if end_offset is None or self._version == ABSENT or fact.leader_epoch >= leader_epoch:
            return None
        link = LedgerLink(ahead, end_offset, leader_epoch)
        fact = replace(fact, leader_epoch=leader_epoch, ledgers=[*fact.ledgers, link])
        return Operation(self._key, fact.encode(), self._version)

    async def offloaded(self, ledger: LedgerId, now_ms: int) -> bool:
        """Write down that object storage holds a whole, verified copy; False if it is trimmed."""

        def change(link: LedgerLink) -> LedgerLink:
            assert link.is_sealed, "what may still grow is not offloaded"
            return replace(link, offloaded_ms=now_ms)

        return await self._change({ledger}, change)

    async def local_deleted(self, ledgers: set[LedgerId], now_ms: int) -> None:
        """Write down that the copies in object storage are the only ones, before they are."""

        def change(link: LedgerLink) -> LedgerLink:
            return replace(link, local_deleted_ms=now_ms)

        # Not to be undone: the sweep may delete the bytes. The caller asks again after a failure.
        await self._change(ledgers, change, lambda: None)

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
        """Put one ledger in the place of others, of which it holds what compaction has left.

        Both begin and end at the same offsets. False where the chain does not name the others any
        more. `stored` is called once it is known that the chain names the new ledger. Where this
        raises, that may be so, so the bytes of neither may go; a later change finds out.
        """

        def changed(fact: PartitionFact) -> PartitionFact | None:
            links = fact.ledgers
            at = next((i for i, one in enumerate(links) if one.ledger == old[0]), len(links))
            replaced = links[at : at + len(old)]
            if [one.ledger for one in replaced] != list(old):
                return None
            assert replaced[0].base_offset == link.base_offset, "no offset is lost before it"
            assert replaced[-1].end_offset == link.end_offset, "no offset is lost after it"
            return replace(fact, ledgers=[*links[:at], link, *links[at + len(old) :]])

        return await self._store(changed, stored)

    async def cleaned(self, offset: int) -> None:
        """Write down that one record of each key is left before `offset`."""
        await self._store(lambda fact: replace(fact, cleaned_offset=offset))

    async def trim(
        self,
        log_start_offset: int,
        gone: set[LedgerId],
        base_offsets: Mapping[LedgerId, int],
        stored: Callable[[], None],
    ) -> None:
        """Move the log's start and take the ledgers in `gone` out of the chain.

        `base_offsets` holds where ledgers truly begin: where a seal failed, the ledger behind
        it learns it here at the latest, before the end of the one before is forgotten. For
        `stored` see `replace`.
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
    if at is None:  # retention was faster
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
        # Later than the end where the tail was lost below the log's start.
        base_offset = max(segment.end_offset, ledgers[at + 1].base_offset)
        ledgers[at + 1] = replace(ledgers[at + 1], base_offset=base_offset)
    return replace(fact, ledgers=ledgers)
