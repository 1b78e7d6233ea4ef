"""Compares ledgers' labels with the facts: which facts were lost or are outdated.

Invariants: pure; reads facts and labels, no store. A ledger enters its chain before its first
record, under an epoch that the chain has by then, and leaves it only when the log starts after its
end. So a ledger with records that no chain names was trimmed, belongs to a deleted topic, or proves
that a fact was lost. A deleted topic has left the greatest epoch in its chains (`log.fencing`).
Ledgers written outside a chain, for another purpose, must not carry the label `partition`.

A compacted ledger carries `compacted` instead, and the offsets that it covers. It is complete
before the chain names it, in place of ledgers whose end the chain has reached. So a compacted
ledger that covers more than its chain, or covers a ledger that the chain names and that does not
exist, proves that the chain is outdated. Any other that no chain names was never swapped in, or was
replaced.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from headrace.errors import DataCorrupt
from headrace.log.fencing import EPOCH_OF_DELETED
from headrace.log.ledger_chain import sealed_end
from headrace.metadata.facts import PARTITIONS, partition_of_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from headrace.metadata.decoding import DamagedFact
    from headrace.metadata.facts import (
        LedgerLink,
        OwnerFact,
        PartitionFact,
        PartitionKey,
        TopicFact,
    )
    from headrace.storage.ledger import LedgerId, LedgerRecord


class Label(NamedTuple):
    """The purpose of a ledger."""

    key: PartitionKey
    topic_name: str
    epoch: int
    is_ahead: bool = False
    """Created by the next owner of a planned move, before its epoch was in the chain."""
    covers: tuple[int, int] | None = None
    """For a compacted ledger: the range of offsets whose records it has, end exclusive."""


def read_label(labels: Mapping[str, bytes]) -> Label | None:
    """Decode the labels; None if they are not valid, since any client may have written them."""
    try:
        topic_id = UUID(hex=labels["topic"].decode())
        is_compacted = "compacted" in labels
        partition = labels["compacted" if is_compacted else "partition"]
        name, _, number = partition.decode().rpartition("-")
        covers = (int(labels["base"]), int(labels["end"])) if is_compacted else None
        is_ahead = "ahead" in labels
        return Label((topic_id, int(number)), name, int(labels["epoch"]), is_ahead, covers)
    except (KeyError, ValueError):
        return None


class ClusterFacts(NamedTuple):
    """The facts of a cluster at about one moment."""

    topics: Mapping[UUID, TopicFact]
    """Including those marked as deleted, whose names are not free yet."""
    chains: Mapping[PartitionKey, PartitionFact]
    owners: Mapping[PartitionKey, OwnerFact]
    partition_counts: Mapping[UUID, int]
    """Topics that existed before the chains were read: these must have their chains."""
    deleted: Collection[UUID] = ()
    """Topics that were deleted while the facts were read."""
    damaged: Sequence[DamagedFact] = ()
    """Facts that cannot be decoded; the others are complete without them."""

    @property
    def damaged_chains(self) -> Mapping[PartitionKey, DamagedFact]:
        """The chains among `damaged`, by partition."""
        found = {}
        for fact in self.damaged:
            if fact.key.startswith(PARTITIONS):
                with suppress(DataCorrupt):
                    found[partition_of_key(fact.key)] = fact
        return found

    @property
    def living(self) -> Mapping[PartitionKey, PartitionFact]:
        """The chains of existing topics."""
        return {key: chain for key, chain in self.chains.items() if key[0] in self.topics}

    @property
    def named(self) -> set[int]:
        """Every ledger that the chain of an existing topic names."""
        return {link.ledger for chain in self.living.values() for link in chain.ledgers}


@dataclass(slots=True)
class Audit:
    """Lost facts, and the ledgers that prove or suggest the loss."""

    missing: dict[PartitionKey, list[LedgerId]] = field(default_factory=dict)
    """Partitions whose chain was lost, with the ledgers that were created for them."""
    suspects: dict[PartitionKey, dict[LedgerId, Label]] = field(default_factory=dict)
    """Ledgers later than all in their chain, with their labels. If they have records, the chain is
    outdated; if not, their creator died before it had entered them."""
    proved: set[PartitionKey] = field(default_factory=set)
    """Partitions whose chain is outdated, as far as labels and lengths show."""
    lost_topics: dict[UUID, str] = field(default_factory=dict)
    """Topics whose fact was lost, with the name in their ledgers' labels; "" if there is none."""
    lost: dict[PartitionKey, list[LedgerLink]] = field(default_factory=dict)
    """Sealed ledgers that a chain names and that do not exist, to be confirmed."""
    kept: set[LedgerId] = field(default_factory=set)
    """Ledgers of existing or lost partitions, which may hold their only remaining records."""


def audit(
    facts: ClusterFacts, unnamed: Iterable[LedgerRecord], stored: Collection[int] | None = None
) -> Audit:
    """Compare the facts with the ledgers that no chain names.

    `stored`: all existing ledgers, listed before the facts were read; None: not known.
    """
    found = Audit()
    deleted = {key[0] for key, chain in facts.chains.items() if _is_closed(chain)}
    deleted.update(facts.deleted)
    for record in sorted(unnamed, key=lambda one: one.ledger):
        label = read_label(record.custom)
        if label is None or (label.covers is not None and not record.is_closed):
            continue  # not created by this cluster, or incomplete and so in no chain
        if label.key[0] not in facts.topics:
            if label.key[0] not in deleted and not record.is_empty:
                found.lost_topics[label.key[0]] = label.topic_name
                found.kept.add(record.ledger)
            continue
        _compare(found, record, label, facts.chains.get(label.key), stored)
    for key, chain in facts.chains.items():
        if key[0] not in facts.topics and key[0] not in deleted and chain.ledgers:
            found.lost_topics.setdefault(key[0], "")
    if stored is not None:
        _note_lost(found, facts, stored)
    for key in facts.damaged_chains:
        if key[0] in facts.topics and not facts.topics[key[0]].is_deleted:
            found.missing.setdefault(key, [])
    for topic in facts.topics.values():
        if topic.is_deleted:
            continue
        for number in range(facts.partition_counts.get(topic.id, 0)):
            key = (topic.id, number)
            owner = facts.owners.get(key)
            # Every owner after the first writes its epoch into the chain before it serves.
            had_owners = owner is not None and owner.leader_epoch > 1
            if key not in facts.chains and (topic.has_chain(number) or had_owners):
                found.missing.setdefault(key, [])
    return found


def _note_lost(found: Audit, facts: ClusterFacts, stored: Collection[int]) -> None:
    for key, chain in facts.living.items():
        lost = [
            link
            for link in chain.ledgers
            if link.is_sealed and link.offloaded_ms is None and link.ledger not in stored
        ]
        if lost and not _is_closed(chain):
            found.lost[key] = lost


def lost_text(lost: Sequence[LedgerLink]) -> str:
    """Names lost ledgers and their offsets."""
    return ", ".join(
        f"ledger {link.ledger} (offsets {link.base_offset} to {(link.end_offset or 0) - 1})"
        for link in lost
    )


def _is_closed(chain: PartitionFact) -> bool:
    return chain.leader_epoch >= EPOCH_OF_DELETED


def is_after(ledger: int, label: Label, chain: PartitionFact) -> bool:
    """Whether a ledger that `chain` does not name was created after all that it names."""
    if label.covers is not None:
        return label.covers[1] > sealed_end(chain)
    return label.epoch > chain.leader_epoch or all(ledger > link.ledger for link in chain.ledgers)


def _is_needed(
    ledger: int, covers: tuple[int, int], chain: PartitionFact, stored: Collection[int] | None
) -> bool:
    """Whether a compacted ledger has records of lost ledgers that its chain names.

    Ledgers that have replaced this one since `stored` was listed are newer than it.
    """
    return stored is not None and any(
        link.ledger not in stored
        and link.ledger < ledger
        and link.local_deleted_ms is None
        and covers[0] <= link.base_offset < covers[1]
        for link in chain.ledgers
    )


def _compare(
    found: Audit,
    record: LedgerRecord,
    label: Label,
    chain: PartitionFact | None,
    stored: Collection[int] | None,
) -> None:
    """Classify a ledger that the chain of its partition does not name."""
    if chain is None:
        found.missing.setdefault(label.key, []).append(record.ledger)
        found.kept.add(record.ledger)
    elif _is_closed(chain):
        return
    elif label.covers is not None:
        is_later = is_after(record.ledger, label, chain)
        if is_later:
            found.suspects.setdefault(label.key, {})[record.ledger] = label
        if is_later or _is_needed(record.ledger, label.covers, chain, stored):
            found.kept.add(record.ledger)
            found.proved.add(label.key)
    elif is_after(record.ledger, label, chain):
        if record.is_empty:
            return
        found.suspects.setdefault(label.key, {})[record.ledger] = label
        found.kept.add(record.ledger)
        # If the chain names nothing, all earlier ledgers may have been trimmed.
        has_order = bool(chain.ledgers) or not chain.log_start_offset
        is_newer = label.epoch > chain.leader_epoch + label.is_ahead
        if is_newer or (has_order and record.is_empty is False):
            found.proved.add(label.key)
