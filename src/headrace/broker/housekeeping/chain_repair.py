"""Rebuilds lost facts from the ledgers' labels, footers and records.

Invariants: a plan changes nothing. Executing it first closes the ledgers that are still open, which
fences their writers, and then writes the chain. No offset is guessed: the first batch and the
footer of each ledger state where it begins and ends, and a ledger that does not fit is a problem
for an operator. What a chain records besides ledgers (log start offset, copies in object storage)
is not in the ledgers: the log then starts with its oldest remaining ledger, and recently trimmed
records may reappear until retention drops them again.

A complete compacted ledger replaces all ledgers whose offsets it covers, the newest first. Never
the other way round: compaction removes a tombstone once the ledgers before it are compacted, so
restoring one of those in its uncompacted form would restore what the tombstone deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.broker.housekeeping.fact_audit import (
    Audit,
    ClusterFacts,
    Label,
    audit,
    lost_text,
    read_label,
)
from headrace.broker.housekeeping.ledger_evidence import (
    NumbersLedgers,
    holds_lost_records,
    read_facts,
)
from headrace.errors import HeadraceError, LedgerUnknown
from headrace.log.footer import decode_footer
from headrace.log.producer_state import ProducerState
from headrace.log.segment import Segment
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    OWNERS,
    CompanionKind,
    LedgerLink,
    PartitionFact,
    TopicFact,
    companion_number,
    partition_key,
    partition_of_companion,
    topic_key,
)
from headrace.metadata.lost_offsets import is_given_up, without_lost
from headrace.metadata.store import ABSENT, MetadataStore
from headrace.metadata.titles import log_title
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from uuid import UUID

    from headrace.metadata.facts import PartitionKey
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import IdsAhead, LedgerRecord, LedgerStore


@dataclass(slots=True)
class ChainRepair:
    """The repair of one partition."""

    key: PartitionKey
    name: str
    fact: PartitionFact
    """The chain after the repair; as a plan, without the ledgers in `open_ledgers`."""
    open_ledgers: list[LedgerId] = field(default_factory=list)
    """Not closed yet: their ends are known once they are closed."""
    lost_records: int = 0
    """Records between others that are in no ledger."""
    lost_ledgers: list[LedgerLink] = field(default_factory=list)
    """Ledgers that the chain names and that do not exist: the repair gives them up."""
    problem: str = ""
    """Why the repair is not possible."""
    version: int = ABSENT

    @property
    def end_offset(self) -> int:
        """The next offset of the log."""
        links = self.fact.ledgers
        return (links[-1].end_offset or 0) if links else self.fact.log_start_offset


@dataclass(slots=True)
class TopicRepair:
    """A topic whose fact was lost."""

    fact: TopicFact
    problem: str = ""


@dataclass(slots=True)
class Repairs:
    """All possible repairs of a cluster."""

    topics: list[TopicRepair] = field(default_factory=list)
    chains: list[ChainRepair] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """Keys of facts that cannot be decoded and that brokers write again."""
    ids_ahead: IdsAhead | None = None
    """Ids that the metadata store would allocate again: it is older than their ledgers."""


class RepairableLedgers:
    """Ledgers by the partition that they were created for."""

    def __init__(self, records: Sequence[LedgerRecord]) -> None:
        self.by_key: dict[PartitionKey, list[tuple[Label, LedgerRecord]]] = {}
        for record in records:
            label = read_label(record.custom)
            # An open compacted ledger was in no chain, and its writer may still be live.
            if label is not None and (label.covers is None or record.is_closed):
                self.by_key.setdefault(label.key, []).append((label, record))
        for ledgers in self.by_key.values():
            ledgers.sort(key=lambda one: (one[0].epoch, one[1].ledger))

    def compacted(self, key: PartitionKey) -> list[LedgerId]:
        """The compacted ledgers of a partition, oldest first."""
        return [record.ledger for label, record in self.by_key.get(key, ()) if label.covers]

    def newest_plain(self, key: PartitionKey, known: Collection[int]) -> LedgerId:
        """The newest of the ledgers `known` to the chain that is not compacted, -1 if there is none
        in BookKeeper: a compacted ledger has a higher id than older ones that are still open."""
        plain = [record.ledger for label, record in self.by_key.get(key, ()) if not label.covers]
        return max((ledger for ledger in plain if ledger in known), default=LedgerId(-1))


class ChainRepairer:
    """Plans and executes repairs."""

    def __init__(self, store: LedgerStore, metadata: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock

    async def plan(self, records: Sequence[LedgerRecord]) -> Repairs:
        """The repairs that are needed; `records` are all ledgers of the cluster. Changes
        nothing."""
        found = await self._repairs(records, is_plan=True, accept_loss=False)
        found.ids_ahead = await self._ids_ahead()
        return found

    async def repair(self, records: Sequence[LedgerRecord], *, accept_loss: bool) -> Repairs:
        """Execute the repairs and return them. `accept_loss`: also where records are permanently
        lost.

        Raises StorageUnavailable, MetadataUnavailable, VersionConflict: then run it again.
        """
        ahead = await self._ids_ahead()
        if ahead and not accept_loss:
            return Repairs(ids_ahead=ahead)
        done = await self._repairs(records, is_plan=False, accept_loss=accept_loss)
        for chain in done.chains:
            if not chain.problem:
                key = partition_key(*chain.key)
                await self._metadata.put(key, chain.fact.encode(), chain.version)
        if ahead and isinstance(self._store, NumbersLedgers):
            await self._store.skip_ids(ahead.last)
            done.ids_ahead = ahead
        return done

    async def _ids_ahead(self) -> IdsAhead | None:
        store = self._store
        return await store.ids_ahead() if isinstance(store, NumbersLedgers) else None

    async def _repairs(
        self, records: Sequence[LedgerRecord], *, is_plan: bool, accept_loss: bool
    ) -> Repairs:
        facts, found = await self._audit(records)
        repairs = Repairs([_lost_topic(*one, facts, records) for one in found.lost_topics.items()])
        for lost in repairs.topics:
            lost.fact.created_ms = self._clock.now_ms()
            if not is_plan and not lost.problem:
                stored = topic_key(lost.fact.name)
                version = next((one.version for one in facts.damaged if one.key == stored), ABSENT)
                await self._metadata.put(stored, lost.fact.encode(), version)
        for damaged in facts.damaged:
            if damaged.key.startswith(OWNERS):  # a partition without one is claimed again
                repairs.removed.append(damaged.key)
                if not is_plan:
                    await self._metadata.delete(damaged.key, damaged.version)
        if repairs.topics and not is_plan:
            facts, found = await self._audit(records)
        ledgers = RepairableLedgers(records)
        affected = {*found.missing, *found.suspects, *found.proved}
        for key in sorted(affected, key=lambda one: (one[0].hex, one[1])):
            chain = facts.chains.get(key)
            topic = facts.topics[key[0]]
            if topic.is_deleted or not await self._is_damaged(key, chain, found, ledgers):
                continue
            repair = ChainRepair(key, f"{topic.name}-{key[1]}", chain or PartitionFact())
            if chain is not None:
                entry = await self._metadata.get(partition_key(*key))
                assert entry is not None, "it was just read"
                repair.version = entry.version
            elif key in facts.damaged_chains:
                repair.version = facts.damaged_chains[key].version
            owner = facts.owners.get(key)
            repair.fact = replace(
                repair.fact,
                leader_epoch=max(
                    repair.fact.leader_epoch, 0 if owner is None else owner.leader_epoch
                ),
            )
            for kind in _companions(key):
                companion = (key[0], companion_number(key[1], kind))
                if companion in facts.chains or companion in ledgers.by_key:
                    repair.fact = repair.fact.with_companion(kind)
            try:
                await self._rebuild(repair, ledgers, is_plan=is_plan, accept_loss=accept_loss)
            except HeadraceError as error:
                repair.problem = str(error)
            repairs.chains.append(repair)
        await self._give_up_lost(repairs, facts, found, accept_loss=accept_loss)
        return repairs

    async def _give_up_lost(
        self, repairs: Repairs, facts: ClusterFacts, found: Audit, *, accept_loss: bool
    ) -> None:
        """Add the repairs of chains that name ledgers that do not exist."""
        repaired = {chain.key for chain in repairs.chains}
        for key in sorted(found.lost.keys() - repaired, key=lambda one: (one[0].hex, one[1])):
            name = log_title(f"{facts.topics[key[0]].name}-{key[1]}")
            lost = await self._without_lost(key, name, found.lost[key], accept_loss=accept_loss)
            if lost is not None:
                repairs.chains.append(lost)

    async def _without_lost(
        self, key: PartitionKey, name: str, suspects: Sequence[LedgerLink], *, accept_loss: bool
    ) -> ChainRepair | None:
        """Give up the ledgers that the chain still names and that certainly do not exist."""
        entry = await self._metadata.get(partition_key(*key))
        if entry is None:
            return None
        fact = decode_fact(PartitionFact, entry)
        lost = [link for link in suspects if link in fact.ledgers and await self._is_lost(link)]
        if not lost:
            return None
        after = without_lost(fact, {link.ledger for link in lost})
        kept = after.ledgers or lost
        records = sum((link.end_offset or 0) - link.base_offset for link in lost)
        repair = ChainRepair(key, name, after, [], records, lost, version=entry.version)
        if not accept_loss:
            more = "" if kept is after.ledgers else ", and with them all earlier records,"
            repair.problem = (
                f"{lost_text(lost)} do not exist, {records} records: restore them from a backup,"
                f" or give them up{more} with --accept-loss"
            )
        return repair

    async def _is_lost(self, link: LedgerLink) -> bool:
        try:
            await self._store.recover(LedgerId(link.ledger))  # it is sealed: this fences no one
        except LedgerUnknown:
            return True
        return False

    async def _is_damaged(
        self,
        key: PartitionKey,
        chain: PartitionFact | None,
        found: Audit,
        ledgers: RepairableLedgers,
    ) -> bool:
        """Whether the chain is certainly damaged; a live owner may be about to enter an open
        ledger."""
        if chain is None or key in found.proved:
            return True
        suspects = [
            record.ledger
            for _label, record in ledgers.by_key.get(key, ())
            if record.ledger in found.suspects[key] and record.is_closed
        ]
        for ledger in suspects:
            if await holds_lost_records(self._store, ledger, chain):
                return True
        return False

    async def _audit(self, records: Sequence[LedgerRecord]) -> tuple[ClusterFacts, Audit]:
        facts = await read_facts(self._metadata)
        named = facts.named
        unnamed = [one for one in records if one.ledger not in named]
        return facts, audit(facts, unnamed, {one.ledger for one in records})

    async def _rebuild(
        self, repair: ChainRepair, ledgers: RepairableLedgers, *, is_plan: bool, accept_loss: bool
    ) -> None:
        """Build the chain from its confirmed links and from the ledgers' own data."""
        named = {link.ledger for link in repair.fact.ledgers}
        links = [link for link in repair.fact.ledgers if link.is_sealed]
        known = {link.ledger for link in links}
        is_new = not repair.fact.ledgers
        newest = ledgers.newest_plain(repair.key, known)
        for label, record in ledgers.by_key.get(repair.key, ()):
            is_trimmed = label.covers is None and record.ledger < newest
            if record.ledger in known or (is_trimmed and record.ledger not in named):
                continue
            repair.fact.leader_epoch = max(repair.fact.leader_epoch, label.epoch)
            if is_plan and not record.is_closed:
                repair.open_ledgers.append(record.ledger)
                continue
            link = await self._link(record.ledger, label)
            if link is not None and (link.end_offset or 0) > repair.fact.log_start_offset:
                links.append(link)
        links = _without_replaced(links, ledgers.compacted(repair.key), known)
        for before, after in pairwise(links):
            end = before.end_offset or 0
            if after.base_offset < end or after.leader_epoch < before.leader_epoch:
                repair.problem = f"ledgers {before.ledger} and {after.ledger} overlap"
                return
            if not is_given_up(repair.fact, end, after.base_offset):
                repair.lost_records += after.base_offset - end
        if repair.lost_records:
            if not accept_loss:
                repair.problem = (
                    f"{repair.lost_records} records between others are in no ledger: restore the "
                    "metadata, or give up these and all earlier records with --accept-loss"
                )
                return
            links = _after_last_gap(links)
        start = repair.fact.log_start_offset
        if links and (is_new or repair.lost_records):
            start = max(start, links[0].base_offset)
        repair.fact = replace(repair.fact, ledgers=links, log_start_offset=start)

    async def _link(self, ledger: LedgerId, label: Label) -> LedgerLink | None:
        """The chain link of a ledger, read from the ledger; None for an empty ledger, and for an
        incomplete compacted one."""
        try:
            info = await self._store.recover(ledger)
        except LedgerUnknown:
            return None
        if not info.end:
            return None
        first = read_header(await self._store.read(ledger, 0, HEADER_SIZE))
        is_compacted = label.covers is not None
        epoch = first.leader_epoch if is_compacted else label.epoch
        segment = Segment(ledger, first.base_offset, epoch)
        if is_compacted and info.footer is None:
            return None
        if info.footer is None:
            now_ms = self._clock.now_ms()
            await segment.load_by_scan(self._store, info.end, ProducerState(), now_ms)
        else:
            footer = decode_footer(info.footer)
            segment.end_offset, segment.end_position = footer.end_offset, info.end
            segment.first_append_ms = footer.first_append_ms
            segment.max_timestamp_ms = footer.offset_index.max_timestamp_ms
            if is_compacted and label.covers != (segment.base_offset, segment.end_offset):
                return None
        return LedgerLink(
            ledger,
            segment.base_offset,
            epoch,
            segment.first_append_ms,
            segment.end_position,
            segment.end_offset,
            segment.max_timestamp_ms,
        )


def _without_replaced(
    links: list[LedgerLink], compacted: list[LedgerId], known: Collection[int]
) -> list[LedgerLink]:
    """The links by offset, without those that a compacted ledger, or a newer compacted one, covers.

    `compacted`: oldest first. A ledger that the chain does not name was replaced by a ledger it
    names (`known`) with a higher id and overlapping offsets: the latter's bytes may exist in object
    storage only, where it has no label.
    """
    in_chain = [link for link in links if link.ledger in known]
    age = {ledger: at for at, ledger in enumerate(compacted)}
    links = [
        link
        for link in links
        if link.ledger in known
        or not any(link.ledger < one.ledger and _overlaps(one, link) for one in in_chain)
    ]
    kept: list[LedgerLink] = []
    for link in sorted(links, key=lambda one: age.get(LedgerId(one.ledger), -1), reverse=True):
        if not any(_overlaps(other, link) for other in kept if other.ledger in age):
            kept.append(link)
    return sorted(kept, key=lambda one: one.base_offset)


def _overlaps(one: LedgerLink, other: LedgerLink) -> bool:
    assert one.end_offset is not None, "it is sealed"
    assert other.end_offset is not None, "it is sealed"
    return one.base_offset < other.end_offset and other.base_offset < one.end_offset


def _after_last_gap(links: list[LedgerLink]) -> list[LedgerLink]:
    for at in reversed(range(1, len(links))):
        if links[at].base_offset != links[at - 1].end_offset:
            return links[at:]
    return links


def _companions(key: PartitionKey) -> Iterable[CompanionKind]:
    """The kinds of companion logs that a partition may have; a companion has none."""
    return CompanionKind if partition_of_companion(key[1]) == key[1] else ()


def _lost_topic(
    topic_id: UUID, name: str, facts: ClusterFacts, records: Sequence[LedgerRecord]
) -> TopicRepair:
    """Rebuild the fact of a lost topic, as far as the ledgers' labels and the chains allow."""
    labels = [label for one in records if (label := read_label(one.custom)) is not None]
    numbers = [label.key[1] for label in labels if label.key[0] == topic_id]
    numbers += [key[1] for key in facts.chains if key[0] == topic_id]
    names = {label.topic_name for label in labels if label.key[0] == topic_id} or {name}
    count = max(numbers, default=0) + 1
    fact = TopicFact(min(names), topic_id, count, 1, {}, 0, chain_count=count)
    repair = TopicRepair(fact)
    if not fact.name:
        repair.problem = "no ledger records its name"
    elif len(names) > 1:
        repair.problem = f"its ledgers record several names: {sorted(names)}"
    elif any(topic.name == fact.name for topic in facts.topics.values()):
        repair.problem = f"another topic has the name {fact.name!r}: delete that topic first"
    return repair
