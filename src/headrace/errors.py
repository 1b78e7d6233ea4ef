"""The errors of Headrace: four kinds, by what the caller should do next (KIP-1050).

Invariants: knows nothing else of Headrace. A subclass carries fields, not prose; its
message names cause, effect and next step. Each face maps classes to codes in one table.
"""

from __future__ import annotations

from typing import Any


class HeadraceError(Exception):
    """The base of all errors that Headrace raises on purpose."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message or self.__class__.__name__)
        self.fields = fields


class Retriable(HeadraceError):
    """Try again, perhaps after refreshing metadata."""


class Rejected(HeadraceError):
    """The request is wrong: the same request gets the same answer."""


class Fenced(HeadraceError):
    """A newer epoch owns this: step down or abort."""


class Fatal(HeadraceError):
    """This process must not go on: corruption, a failed sync, a broken invariant."""


# --- storage and log -------------------------------------------------------------------------


class StorageUnavailable(Retriable):
    """The write was not stored (disk full, I/O error): nothing of it is visible; try again."""


class DiskFull(StorageUnavailable):
    """The write was not stored for lack of space: only an operator can make room."""


class LedgerUnknown(Rejected):
    """No such ledger: it was deleted or never made."""


class LedgerSealed(Fenced):
    """The ledger takes no more entries: another writer or a roll has sealed it."""


class LedgerFenced(Fenced):
    """Another broker has taken the ledger over: this one does not own the partition any more."""


class LedgerLost(Retriable):
    """Whether the write was stored is in doubt, and the ledger takes no more of this writer's."""


class DataCorrupt(Fatal):
    """Stored bytes do not match their checksum. They are never served."""


class ChainMissing(DataCorrupt):
    """The stored chain of a partition's ledgers is missing, or older than the ledgers themselves.

    To serve the partition would lose acknowledged records and give their offsets again.
    """


class FactMissing(Fatal):
    """A fact that must be in the metadata store is not there: it was lost, not never written."""


class FolderInUse(Fatal):
    """Another process holds the data folder."""


class FormatUnsupported(Fatal):
    """The folder was written in a format that this version does not read."""


class CompactionInterrupted(Retriable):
    """A round of log compaction ended before its time; the log is as it was."""


class OffsetOutOfRange(Rejected):
    """The offset lies outside [log start offset, log end offset]."""


class BatchCorrupt(Rejected):
    """A record batch whose length, layout or CRC is wrong."""


class BatchTooLarge(Rejected):
    """A record batch larger than `max.message.bytes`."""


class RecordInvalid(Rejected):
    """A well-formed batch that this topic does not take (codec, timestamp, magic)."""


class UnsupportedForMessageFormat(Rejected):
    """The message format is older than record batch v2."""


class OutOfOrderSequence(Rejected):
    """An idempotent producer skipped a sequence number (KIP-98)."""


class DuplicateSequence(Rejected):
    """A retry older than the last five batches of its producer."""


class UnknownProducerId(Rejected):
    """The producer's state has expired; it must take a new id (KIP-360)."""


class ProducerFenced(Fenced):
    """A newer epoch of this producer id is at work."""


# --- transactions ----------------------------------------------------------------------------


class TransactionStateInvalid(Rejected):
    """The transaction is not in a state that allows this."""


class TransactionCoordinatorFenced(Fenced):
    """A newer coordinator of this producer's transactions is at work."""


class TransactionAbortable(Rejected):
    """The transaction cannot go on: abort it, and begin the next one (KIP-890)."""


class ConcurrentTransactions(Retriable):
    """Another operation of this transaction is under way: try again in a moment."""


class TransactionUnverified(Retriable):
    """Whether the producer's transaction includes this partition cannot be found out now."""


class TransactionalProducerFenced(Fenced):
    """A newer producer with this transactional id is at work, or the transaction timed out."""


class ProducerIdMappingInvalid(Rejected):
    """The producer id is not the one that the transactional id has now."""


class TransactionTimeoutInvalid(Rejected):
    """The transaction timeout lies outside the broker's bounds."""


class TransactionalIdUnknown(Rejected):
    """No such transactional id."""


class TransactionalIdRefused(Rejected):
    """The broker does not grant this use of the transactional id."""


class OffsetCommitUnstable(Retriable):
    """A transaction has committed an offset of this partition and has not ended yet."""


# --- metadata --------------------------------------------------------------------------------


class VersionConflict(Retriable):
    """A compare-and-set lost: somebody changed the key since it was read."""


class MetadataUnavailable(Retriable):
    """The metadata store cannot be reached now."""


# --- topics and partitions -------------------------------------------------------------------


class TopicUnknown(Retriable):
    """No such topic or partition here (it may be on its way)."""


class TopicIdUnknown(Retriable):
    """No topic has this id: it was deleted and perhaps made again under its name."""


class TopicExists(Rejected):
    """The topic is there already."""


class TopicNameInvalid(Rejected):
    """Not a legal topic name."""


class PartitionsInvalid(Rejected):
    """Not a legal partition count."""


class AssignmentInvalid(Rejected):
    """Not a legal assignment of partitions to brokers."""


class ReplicationFactorInvalid(Rejected):
    """More replicas asked for than there are brokers."""


class ConfigInvalid(Rejected):
    """An unknown configuration name or a value out of range."""


class RequestInvalid(Rejected):
    """The request contradicts itself or the protocol."""


class VersionUnsupported(Rejected):
    """The request asks for something that its version does not have."""


class AcksInvalid(Rejected):
    """A Produce request wants acknowledgements that do not exist."""


class NotOwner(Retriable):
    """Another broker owns this partition: refresh metadata."""


class BrokerIdInUse(Fatal):
    """A living broker of the cluster has this id already."""


class LeaderEpochFenced(Retriable):
    """The client knows an older leader epoch: refresh metadata."""


class LeaderEpochUnknown(Retriable):
    """The client knows a newer leader epoch than this broker."""


class BrokerUnreachable(Retriable):
    """Another broker gave no answer: what it was asked may have been done."""


class PolicyViolation(Rejected):
    """A broker policy forbids it."""


# --- groups ----------------------------------------------------------------------------------


class CoordinatorLoading(Retriable):
    """The coordinator is still reading its state from the log."""


class CoordinatorUnavailable(Retriable):
    """The coordinator cannot store its state now."""


class NotCoordinator(Retriable):
    """Another broker coordinates this group."""


class GroupIdInvalid(Rejected):
    """An empty or illegal group id."""


class GroupUnknown(Rejected):
    """No such group."""


class GroupNotEmpty(Rejected):
    """The group still has members."""


class GroupSubscribed(Rejected):
    """The group is subscribed to this topic: its offsets cannot be deleted."""


class MemberUnknown(Rejected):
    """The member is not (or no longer) in the group: join again."""


class MemberIdRequired(Rejected):
    """Join again with the member id that this answer brings (KIP-394)."""


class IllegalGeneration(Rejected):
    """The generation has passed: join again."""


class RebalanceInProgress(Retriable):
    """The group is rebalancing: join again."""


class InconsistentProtocol(Rejected):
    """The member shares no assignment protocol with its group."""


class SessionTimeoutInvalid(Rejected):
    """The session timeout lies outside the broker's bounds."""


class InstanceIdFenced(Fenced):
    """Another member has taken over this static instance id (KIP-345)."""


class GroupFull(Rejected):
    """The group has `group.max.size` members already."""


class MemberEpochStale(Rejected):
    """The member epoch has passed: heartbeat, then try again with the newer one (KIP-848)."""


class InstanceIdUnreleased(Rejected):
    """A member that has not left uses this static instance id (KIP-848)."""


class AssignorUnsupported(Rejected):
    """The broker has no assignor of this name (KIP-848)."""


class RegularExpressionInvalid(Rejected):
    """The regular expression of a subscription cannot be used (KIP-848)."""


class StreamsTopologyInvalid(Rejected):
    """The topology of a streams application contradicts itself, or is too large (KIP-1071)."""


class OffsetMetadataTooLarge(Rejected):
    """The metadata string of a committed offset is too long."""


class FetchSessionUnknown(Retriable):
    """The fetch session was evicted: start a new one (KIP-227)."""


class FetchSessionEpochInvalid(Retriable):
    """The fetch session's epoch does not follow the last one (KIP-227)."""


# --- share groups ----------------------------------------------------------------------------


class RecordStateInvalid(Rejected):
    """The records are not held by this member: their lock has ended, or they were settled."""


class MemberEpochFenced(Rejected):
    """The member's epoch is not the one that its group knows: join again."""


class ShareSessionUnknown(Retriable):
    """The member has no share session on this broker: open one."""


class ShareSessionEpochInvalid(Retriable):
    """The share session's epoch does not follow the last one: open a new session."""


class QuotaExceeded(Retriable):
    """A quota is used up for now; nothing was changed (KIP-599). `throttle_ms`: when to retry."""


class ShareSessionLimitReached(Retriable):
    """The broker keeps as many share sessions as it may: try again later."""
