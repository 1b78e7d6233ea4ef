"""The pipeline's errors, in the four kinds of `headrace.errors`.

Invariants: a message names cause, effect and next step; imports nothing heavy.
"""

from __future__ import annotations

from headrace.errors import Fatal, Fenced, Rejected, Retriable

PASSING_CODES = frozenset({
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT",
    "_RESOLVE", "_WAIT_COORD", "REQUEST_TIMED_OUT", "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION", "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE",
    "NETWORK_EXCEPTION", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
    "THROTTLING_QUOTA_EXCEEDED",
})  # fmt: skip
"""librdkafka's names of the errors after which the same request may succeed later."""

CATALOG_REFUSALS = frozenset({
    "BadRequest", "Forbidden", "NotAuthorized", "OAuth", "Unauthorized", "UnprocessableEntity",
})  # fmt: skip
"""What a REST catalog answers to a request that it never accepts, as pyiceberg and Iceberg's Java
name it (before "Error" or "Exception"). After its other errors the same request may succeed."""
CATALOG_FAILURES = frozenset({
    "CommitStateUnknown", "REST", "ServiceFailure", "ServiceUnavailable",
})  # fmt: skip
"""Those others, in Java, where errors have no common name."""


class OptionInvalid(Rejected):
    """An option of the data source or of a job is unknown, missing or contradicts another."""


class RecordsLost(Fatal):
    """Records between two offsets are no longer in the log (retention), or never were."""


class TopicRecreated(RecordsLost):
    """The topic's id differs from the stored one: it was deleted and recreated."""


class RecordUnreadable(Fatal):
    """A record cannot be returned; the message names its partition and offset."""


class ReadStalled(Retriable):
    """The broker sent nothing within the time-out although the log has more records."""


class ReadRefused(Rejected):
    """The broker refuses to serve a partition to this client."""


class RightsMissing(Rejected):
    """A job lacks rights; the message has the commands that give them."""


class NotStableYet(Retriable):
    """The planned records are not committed yet: a transaction is open."""


class BrokerUnavailable(Retriable):
    """A request of planning was not answered: the broker is down, starting, or out of reach."""


class StoreUnavailable(Retriable):
    """Object storage, from which tiered records are read, did not answer."""


class ValueUndecodable(Rejected):
    """A value is not what its schema says (onUndecodable=fail); names topic, partition, offset."""


class RowsChanged(Fatal):
    """A replayed micro-batch produced different rows, so it cannot be written exactly once."""


class RowInvalid(Rejected):
    """No record can hold this row unchanged, for example because a header key is null."""


class RecordRefused(Rejected):
    """The broker refuses a record of the sink, however often it is sent."""


class DeliveryFailed(Retriable):
    """The broker did not acknowledge a record of the sink."""


class ProgressRefused(Rejected):
    """The broker refuses to store or to show a writer's progress, however often it is asked."""


class DeliveryInDoubt(Fatal):
    """It can no longer be determined which rows of a micro-batch are written."""


class CatalogUnavailable(Retriable):
    """The catalog of a warehouse did not answer."""


class LeaseHeld(Retriable):
    """Another process is writing to this table, or runs this job."""


class TableUnusable(Rejected):
    """The table was altered in a way in which its progress, or its records, cannot be read."""


class TableMoved(Fenced):
    """Another writer, or a rollback, changed the table during this round."""
