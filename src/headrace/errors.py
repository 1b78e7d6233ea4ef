"""The error classes of Headrace: four kinds, by how the caller should react (KIP-1050).

Invariants: imports nothing else of Headrace. Subclasses carry fields rather than prose; a
message names cause, effect and next step. Each protocol maps classes to codes in one table.
"""

from __future__ import annotations

from typing import Any


class HeadraceError(Exception):
    """Base class of all errors that Headrace raises deliberately."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message or self.__class__.__name__)
        self.fields = fields


class Retriable(HeadraceError):
    """The operation may succeed if retried, perhaps after a metadata refresh."""


class Rejected(HeadraceError):
    """The request is invalid: retrying it unchanged gives the same answer."""


class Fenced(HeadraceError):
    """A newer epoch owns the resource: step down or abort."""


class Fatal(HeadraceError):
    """This process must not continue: corruption, a failed sync, a broken invariant."""


# --- authentication --------------------------------------------------------------------------


class AuthenticationFailed(Rejected):
    """A login failed. The message says why, for the log: clients are never told the reason."""


class SaslStateIllegal(Rejected):
    """A SASL request that does not belong here: after the login, or out of order."""


class MechanismUnsupported(Rejected):
    """A SASL mechanism that is unknown, or not enabled on this listener (field `enabled`)."""


class CredentialInvalid(Rejected):
    """A credential that is not accepted: iterations out of bounds, or an empty name."""


class CredentialDuplicate(Rejected):
    """A user exists already, or one request changes it twice."""


class CredentialUnknown(Rejected):
    """There is no such user, or the user has no credential for the mechanism."""


# --- storage and log -------------------------------------------------------------------------


class StorageUnavailable(Retriable):
    """The write was not stored (disk full, I/O error) and none of it is visible; retry."""


class CopiesDamaged(StorageUnavailable):
    """All copies of an entry are damaged: only a restored copy ends this."""


class DiskFull(StorageUnavailable):
    """The write was not stored for lack of space: an operator must free some."""


class LedgerUnknown(Rejected):
    """No such ledger: it was deleted or never created."""


class LedgerSealed(Fenced):
    """The ledger is sealed, by another writer or by a roll, and takes no more entries."""


class LedgerFenced(Fenced):
    """Another broker took over the ledger: this broker no longer owns the partition."""


class LedgerLost(Retriable):
    """The outcome of the write is unknown, and this writer can no longer append to the ledger."""


class DataCorrupt(Fatal):
    """Stored bytes do not match their checksum. They are never served."""


class ChainMissing(DataCorrupt):
    """A partition's stored ledger chain is missing or older than the ledgers themselves.

    Serving the partition would lose acknowledged records and reuse their offsets.
    """


class FactMissing(Fatal):
    """A required entry is missing from the metadata store: it was written once and then lost."""


class FolderInUse(Fatal):
    """Another process holds the lock on the data folder."""


class FormatUnsupported(Fatal):
    """The data folder has a format that this version cannot read."""


class CompactionInterrupted(Retriable):
    """A compaction pass was interrupted; the log is unchanged."""


class OffsetOutOfRange(Rejected):
    """The offset is outside [log start offset, log end offset]."""


class BatchCorrupt(Rejected):
    """A record batch with an invalid length, layout or CRC."""


class BatchExpandsTooFar(BatchCorrupt):
    """The batch decompresses to more than the limit. As BatchCorrupt it is passed over where
    batches are read; a producer learns that smaller ones can be stored."""


class BatchTooLarge(Rejected):
    """A record batch larger than `max.message.bytes`."""


class RecordInvalid(Rejected):
    """A well-formed batch that this topic does not accept (codec, timestamp, magic)."""


class LiteTopicsFull(RecordInvalid):
    """The partition has as many lite topics as it may, and the record is of another one."""


class UnsupportedForMessageFormat(Rejected):
    """A message format older than record batch v2."""


class CodecUnsupported(Rejected):
    """A compression codec that this version of the request does not allow (KIP-110)."""


class OutOfOrderSequence(Rejected):
    """An idempotent producer skipped a sequence number (KIP-98)."""


class DuplicateSequence(Rejected):
    """A retry older than the last five batches of its producer."""


class UnknownProducerId(Rejected):
    """The producer's state has expired; it needs a new producer id (KIP-360)."""


class ProducerFenced(Fenced):
    """A producer with the same id and a newer epoch is active."""


# --- transactions ----------------------------------------------------------------------------


class TransactionStateInvalid(Rejected):
    """The transaction's state does not allow this operation."""


class TransactionCoordinatorFenced(Fenced):
    """A newer coordinator owns this producer's transactions."""


class TransactionAbortable(Rejected):
    """The transaction cannot continue: abort it and begin another (KIP-890)."""


class ConcurrentTransactions(Retriable):
    """Another operation on this transaction is in progress: retry shortly."""


class TransactionUnverified(Retriable):
    """The broker cannot verify now that the producer's transaction includes this partition."""


class TransactionalProducerFenced(Fenced):
    """A newer producer uses this transactional id, or the transaction timed out."""


class ProducerIdMappingInvalid(Rejected):
    """The producer id is not the one currently assigned to the transactional id."""


class TransactionTimeoutInvalid(Rejected):
    """The transaction timeout is outside the broker's limits."""


class TransactionalIdUnknown(Rejected):
    """No such transactional id."""


class TransactionalIdRefused(Rejected):
    """The broker does not allow this use of the transactional id."""


class Unauthorized(Rejected):
    """The client's principal has no right to do this."""


class TopicUnauthorized(Unauthorized):
    """No right to do this with the topic."""


class GroupUnauthorized(Unauthorized):
    """No right to do this with the group."""


class ClusterUnauthorized(Unauthorized):
    """No right to do this with the cluster."""


class TransactionalIdUnauthorized(Unauthorized):
    """No right to use the transactional id."""


class DelegationTokenUnauthorized(Unauthorized):
    """No right to do this with the delegation token, or with tokens of the user."""


class DelegationTokenDisabled(Rejected):
    """There are no delegation tokens on this broker."""


class DelegationTokenUnknown(Rejected):
    """There is no such delegation token."""


class DelegationTokenOwnerMismatch(Rejected):
    """The client is neither owner nor renewer of the delegation token."""


class DelegationTokenRequestForbidden(Rejected):
    """Delegation tokens are not handled on this connection."""


class DelegationTokenExpired(Rejected):
    """The delegation token has expired."""


class PrincipalTypeInvalid(Rejected):
    """A principal of this type cannot be named here."""


class SecurityDisabled(Rejected):
    """The broker has no authorizer, so it stores no access control lists."""


class OffsetCommitUnstable(Retriable):
    """A transaction with a pending offset commit for this partition is still open."""


# --- metadata --------------------------------------------------------------------------------


class VersionConflict(Retriable):
    """A compare-and-set failed: the key has changed since it was read."""


class MetadataUnavailable(Retriable):
    """The metadata store is unreachable."""


# --- topics and partitions -------------------------------------------------------------------


class TopicUnknown(Retriable):
    """No such topic or partition on this broker (it may be about to appear)."""


class TopicIdUnknown(Retriable):
    """No topic has this id: it was deleted and possibly recreated under the same name."""


class TopicExists(Rejected):
    """The topic already exists."""


class TopicNameInvalid(Rejected):
    """Invalid topic name."""


class PartitionsInvalid(Rejected):
    """Invalid partition count."""


class AssignmentInvalid(Rejected):
    """Invalid assignment of partitions to brokers."""


class NoReassignment(Rejected):
    """The partition is not being reassigned: there is nothing to cancel."""


class SubscriptionUnknown(Rejected):
    """The client metrics subscription has changed: the client must get it again."""


class TelemetryTooLarge(Rejected):
    """The metrics that a client pushes exceed the limit."""


class ReplicationFactorInvalid(Rejected):
    """The replication factor exceeds the number of brokers."""


class ConfigInvalid(Rejected):
    """An unknown configuration name, or a value out of range."""


class RequestInvalid(Rejected):
    """The request is inconsistent or violates the protocol."""


class VersionUnsupported(Rejected):
    """The request uses something that its version does not support."""


class AcksInvalid(Rejected):
    """A Produce request with an invalid `acks` value."""


class NotOwner(Retriable):
    """Another broker owns this partition: refresh metadata."""


class BrokerIdInUse(Fatal):
    """A live broker of the cluster already uses this id."""


class LeaderEpochFenced(Retriable):
    """The client's leader epoch is older than the broker's: refresh metadata."""


class LeaderEpochUnknown(Retriable):
    """The client's leader epoch is newer than the broker's."""


class BrokerUnknown(Rejected):
    """No live broker has this id."""


class BrokerUnreachable(Retriable):
    """Another broker did not answer: it may or may not have carried out the request."""


class PeerVersionDiffers(Retriable):
    """Another broker has another version, and does not know what it is asked: while brokers are
    upgraded one by one."""


class PolicyViolation(Rejected):
    """A broker policy forbids the request."""


# --- groups ----------------------------------------------------------------------------------


class CoordinatorLoading(Retriable):
    """The coordinator is still loading its state from the log."""


class CoordinatorUnavailable(Retriable):
    """The coordinator cannot persist its state now."""


class NotCoordinator(Retriable):
    """Another broker coordinates this group."""


class GroupIdInvalid(Rejected):
    """The group id is empty or invalid."""


class GroupUnknown(Rejected):
    """No such group."""


class GroupNotEmpty(Rejected):
    """The group still has members."""


class GroupSubscribed(Rejected):
    """The group is subscribed to this topic: its offsets cannot be deleted."""


class MemberUnknown(Rejected):
    """The member is not in the group, or no longer is: rejoin."""


class MemberIdRequired(Rejected):
    """Rejoin with the member id in this response (KIP-394)."""


class IllegalGeneration(Rejected):
    """The generation is outdated: rejoin."""


class RebalanceInProgress(Retriable):
    """The group is rebalancing: rejoin."""


class InconsistentProtocol(Rejected):
    """The member has no assignment protocol in common with its group."""


class SessionTimeoutInvalid(Rejected):
    """The session timeout is outside the broker's limits."""


class InstanceIdFenced(Fenced):
    """Another member has taken over this group instance id (KIP-345)."""


class GroupFull(Rejected):
    """The group already has `group.max.size` members."""


class MemberEpochStale(Rejected):
    """The member epoch is outdated: heartbeat, then retry with the new one (KIP-848)."""


class InstanceIdUnreleased(Rejected):
    """A member that has not left still uses this group instance id (KIP-848)."""


class AssignorUnsupported(Rejected):
    """The broker has no assignor with this name (KIP-848)."""


class RegularExpressionInvalid(Rejected):
    """The regular expression of a subscription is invalid (KIP-848)."""


class StreamsTopologyInvalid(Rejected):
    """The topology of a streams application is inconsistent or too large (KIP-1071)."""


class OffsetMetadataTooLarge(Rejected):
    """The metadata string of a committed offset is too long."""


class FetchSessionUnknown(Retriable):
    """The fetch session was evicted: start a new one (KIP-227)."""


class FetchSessionEpochInvalid(Retriable):
    """The fetch session epoch is not the next one (KIP-227)."""


# --- share groups ----------------------------------------------------------------------------


class RecordStateInvalid(Rejected):
    """The member has not acquired these records: the lock expired, or they were acknowledged."""


class DeliverySettled(RecordStateInvalid):
    """This delivery was settled before, in the same way: nothing is left to do.

    Known for as long as its lock would have lasted, within limits; afterwards DeliveryFinished or
    DeliveryLost.
    """


class DeliveryFinished(RecordStateInvalid):
    """The records are finished in the group: settled before, by this delivery or another one."""


class DeliveryLost(RecordStateInvalid):
    """The member does not hold the records: its lock expired, or it never had them."""


class DeliveryExpired(DeliveryLost):
    """The member's lock on the records has expired: they are redelivered."""


class DeliveryTaken(DeliveryLost):
    """Another delivery holds the records."""


class DeliveryUnknown(RecordStateInvalid):
    """The records were never delivered to the group."""


class ReceiptInvalid(Rejected):
    """A receipt names no delivery, or is settled twice in one call."""


class GroupKindMismatch(Rejected):
    """The id belongs to a group of another kind."""


class MemberEpochFenced(Rejected):
    """The member's epoch does not match the group's: rejoin."""


class ShareSessionUnknown(Retriable):
    """The member has no share session on this broker: open one."""


class ShareSessionEpochInvalid(Retriable):
    """The share session epoch is not the next one: open a new session."""


class QuotaExceeded(Retriable):
    """A quota is exhausted; nothing was changed (KIP-599). `throttle_ms`: when to retry."""


class WriteDeferred(QuotaExceeded):
    """A tenant owes so much of its rate that nothing was stored: send it again."""


class ShareSessionLimitReached(Retriable):
    """The broker has reached its limit of share sessions: retry later."""
