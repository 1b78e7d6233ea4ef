"""The typed configuration of a log, with Kafka's names and defaults.

Invariants: values only. The strings and their documentation are in
`broker/topics/topic_config.py`, their parsing in `broker/topics/overrides.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import BatchTooLarge, RecordInvalid
from headrace.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL

if TYPE_CHECKING:
    from headrace.records.batch import BatchHeader
    from headrace.storage.ledger import Copies

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of one log; -1 means unlimited where Kafka defines it so."""

    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    max_message_bytes: int = MIB + 12
    flush_ms: int | None = None
    """None: every acknowledged record is synced (Headrace's default)."""
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = 2**63 - 1
    timestamp_after_max_ms: int = 3600 * 1000
    is_deleted_by_retention: bool = True
    is_compacted: bool = False
    """Whether every record needs a key, and is replaced by later ones with the same key."""
    compaction_lag_min_ms: int = 0
    """The minimum age of a ledger's newest record before it is compacted."""
    compaction_lag_max_ms: int = 2**63 - 1
    """The maximum age of an uncompacted ledger, even if the dirty ratio is low."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long tombstones and transaction markers are kept after they were first compacted."""
    dirty_ratio_min: float = 0.5
    """The minimum fraction of dirty bytes for a pass."""
    compression: str = "producer"
    ttl_ms: int = -1
    """After this time share groups no longer deliver a record."""
    has_attributes: bool = False
    """Whether queue attributes (reserved headers) are read, which requires decoding batches."""
    refuses_attributes: bool = False
    """Whether validated batches with attributes that would have an effect if read are refused."""
    lite_topics_max: int = 0
    """How many lite topics it may have, so that batches are decoded; 0: it is none of theirs."""
    is_remote_enabled: bool = False
    """Whether sealed ledgers are offloaded to object storage."""
    local_retention_ms: int = -2
    """How long an offloaded ledger keeps its local copy; -2: until the ledger is deleted."""
    local_retention_bytes: int = -2
    is_table_replacing: bool = False
    """Whether offloaded ledgers give up records that the topic's table has."""
    copies: Copies | None = None
    """Replication of the next ledger; None: the store's default."""
    is_validated: bool = True
    """Whether the records of each batch are validated; if not, those of opened ones alone."""
    is_opaque: bool = field(init=False)
    """Whether batches are stored as received."""
    has_age_limit: bool = field(init=False)
    """Whether `check_oldest` can fail."""

    def __post_init__(self) -> None:
        is_opaque = (
            self.compression == "producer"
            and not self.is_log_append_time
            and not self.is_compacted
            and not self.has_attributes
            and not self.lite_topics_max
        )
        has_age_limit = self.timestamp_before_max_ms < 2**63 - 1 and not self.is_log_append_time
        object.__setattr__(self, "is_opaque", is_opaque)  # the class is frozen
        object.__setattr__(self, "has_age_limit", has_age_limit)

    def check_size(self, size: int) -> None:
        """Raises BatchTooLarge if a batch of `size` bytes exceeds the topic's limit."""
        if size > self.max_message_bytes:
            raise BatchTooLarge(
                f"a batch of {size} bytes exceeds max.message.bytes={self.max_message_bytes}"
                " of its topic: send smaller batches, or raise the limit",
                limit=self.max_message_bytes,
                actual=size,
            )

    def check_content(self, header: BatchHeader, now_ms: int) -> None:
        """Raises RecordInvalid or BatchTooLarge if the topic does not accept the batch."""
        if header.attributes & CONTROL:
            raise RecordInvalid("control batches are not accepted: only the broker writes them")
        if header.attributes & TRANSACTIONAL and header.producer_id == NO_PRODUCER_ID:
            raise RecordInvalid("a transactional batch without a producer id is not accepted")
        self.check_size(header.size)
        if header.max_timestamp_ms > now_ms + self.timestamp_after_max_ms:
            raise RecordInvalid(
                f"timestamp {header.max_timestamp_ms} is more than"
                f" message.timestamp.after.max.ms={self.timestamp_after_max_ms} in the future",
                is_timestamp=True,
            )

    def check_oldest(self, oldest_ms: int, now_ms: int) -> None:
        """Raises RecordInvalid if a batch's smallest timestamp is too far in the past."""
        # With LogAppendTime, the producer's timestamps are replaced.
        if self.has_age_limit and 0 <= oldest_ms < now_ms - self.timestamp_before_max_ms:
            raise RecordInvalid(
                f"timestamp {oldest_ms} is more than"
                f" message.timestamp.before.max.ms={self.timestamp_before_max_ms} in the past",
                is_timestamp=True,
            )
