"""Commands and replies of the share groups of one data partition.

Invariants: plain slotted dataclasses; times are int milliseconds; an error is an instance of a
HeadraceError or None. Kafka's share groups, HTTP's queues and RocketMQ's pop are faces of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.coordination.shares.config import ShareConfig
    from headrace.errors import HeadraceError

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Kafka's types of acknowledgement. Do not change: on the wire."""
UNDELIVERED: Final = 128
"""Not Kafka's: the record did not reach a consumer, so the delivery does not count. Outside the
int8 of Kafka's types, so that no Kafka client can send it."""
KINDS: Final = (GAP, ACCEPT, RELEASE, REJECT, RENEW, UNDELIVERED)

FAILED_BY_CONSUMER: Final = "rejected by the consumer"
FAILED_BY_COUNT: Final = "delivery count limit reached"
FAILED_BY_EXPIRY: Final = "expired"


class RecordOrder(NamedTuple):
    """The properties of one record that determine its order of delivery."""

    offset: int
    key_hash: int
    """Equal for records with the same key. Collisions reduce parallelism, never order. A negative
    value belongs to this record only."""
    priority: int = 0
    """0 to 9; higher ones are delivered first"""
    expires_ms: int = -1
    is_wanted: bool = True
    """False if the record does not match the group's filter"""


class Acquired(NamedTuple):
    """Records delivered to one member: [first, last], for the `deliveries`-th time."""

    first: int
    last: int
    deliveries: int


class Settlement(NamedTuple):
    """A member's acknowledgement of records [first, last] that it holds."""

    first: int
    last: int
    kind: int
    delay_ms: int = -1
    """RELEASE: the delay before the next delivery, -1: the group's back-off. RENEW: the new lock
    time, -1: the group's."""
    reason: str = ""
    """REJECT: recorded in the dead letter"""


class LocksExpired(NamedTuple):
    """The locks of so many records have expired."""

    group_id: str
    records: int


class Filtered(NamedTuple):
    """So many records do not match what the group selects, and are acknowledged."""

    group_id: str
    records: int


class DeadLetter(NamedTuple):
    """Records that were given up; if they have copies, they are archived until these are in the
    dead letter topic."""

    group_id: str
    first: int
    last: int
    deliveries: int
    reason: str
    given_up_ms: int
    """When they were archived: stored with them, to distinguish repeated occurrences."""
    has_copy: bool = True
    """False if the group has no dead letter topic: the records are finished."""


class ShareDescription(NamedTuple):
    """The position of one group in the partition."""

    group_id: str
    start: int
    end: int
    acquired_records: int
    finished_records: int
    archiving_records: int
    redelivered_records: int = 0
    """Unfinished records that were delivered more than once, or given back."""


class DeliveryState(NamedTuple):
    """The state of one record in one group."""

    group_id: str
    state: str
    """`finished` if it is, however; `waiting` if it was never delivered; else one of the window's
    states."""
    deliveries: int
    owner: str
    """The member that holds it, if any."""
    at_ms: int
    """The end of the lock, or the earliest next delivery; 0: none."""


NOT_PARKED: Final = -1


class ParkedKey(NamedTuple):
    """A key whose records a group has parked."""

    key: bytes
    at_ms: int
    records: int
    """Known records; more may follow in the log."""


@dataclass(slots=True)
class ShareReply:
    """A reply without further content."""

    error: HeadraceError | None = None


@dataclass(slots=True)
class AcquireReply:
    """The delivered records, by offset."""

    error: HeadraceError | None = None
    acquired: list[Acquired] = field(default_factory=list)


@dataclass(slots=True)
class PeekReply:
    """Ranges that could be acquired now, in order of delivery."""

    error: HeadraceError | None = None
    ranges: list[tuple[int, int]] = field(default_factory=list)
    rows_from: int = -1
    """The offset from which rows are needed (LearnCommand), -1: none are."""
    again_from: int = -1
    """The offset from which rows are needed again, for keys whose next records are not known any
    more; -1: none are. They are next even if there are `ranges`, of other keys."""
    reads_ahead: bool = False
    """Whether these rows should be read first even though there are `ranges`, since some may
    precede them."""
    wait_ms: int = -1
    """When more records become available without new ones, -1: not by time alone."""


@dataclass(slots=True)
class SettleReply:
    """One error or None for each settlement."""

    error: HeadraceError | None = None
    errors: list[HeadraceError | None] = field(default_factory=list)


@dataclass(slots=True)
class DescribeReply:
    """The positions of the groups, by group id."""

    error: HeadraceError | None = None
    groups: list[ShareDescription] = field(default_factory=list)


@dataclass(slots=True)
class StatesReply:
    """For each requested offset, the state of the record in each group, by group id."""

    error: HeadraceError | None = None
    states: list[list[DeliveryState]] = field(default_factory=list)


@dataclass(slots=True)
class ParkedReply:
    """The parked keys of a group, in byte order."""

    error: HeadraceError | None = None
    keys: list[ParkedKey] = field(default_factory=list)


@dataclass(slots=True)
class OpenShareGroupCommand:
    """Open the group on this partition, from `start` on, unless it is open; set its config.
    `is_reader`: its tenant reads another one's topic."""

    group_id: str
    start: int
    config: ShareConfig
    is_reader: bool = False

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class PeekCommand:
    """Which records before `readable_end` could be acquired; changes nothing."""

    group_id: str
    readable_end: int
    records_max: int
    takes_followers: bool = False
    """See AcquireCommand."""

    def refused(self, error: HeadraceError) -> PeekReply:
        """The reply that carries `error`."""
        return PeekReply(error)


@dataclass(slots=True)
class ClaimReply:
    """Whether the caller has the partition's claim now."""

    error: HeadraceError | None = None
    is_owner: bool = False
    wait_ms: int = 0
    """When the partition may be free, unless the caller has it."""


@dataclass(slots=True)
class ClaimCommand:
    """Claim the partition in a group whose subscription is not shared, or renew the claim.

    It lasts for the group's lock time, or `lock_ms` if that is longer, and while any of its records
    is in flight.
    """

    group_id: str
    owner: str
    lock_ms: int = -1

    def refused(self, error: HeadraceError) -> ClaimReply:
        """The reply that carries `error`."""
        return ClaimReply(error)


@dataclass(slots=True)
class AcquireCommand:
    """Deliver records to a member.

    `within`: ranges of offsets that the caller has read (whole batches), ascending.
    """

    group_id: str
    member_id: str
    within: Sequence[tuple[int, int]]
    records_max: int
    is_strict: bool = False
    """Never more than `records_max`; otherwise ranges of `within` are delivered as a whole."""
    lock_ms: int = -1
    """-1: the group's"""
    owner: str = ""
    """In a sticky group: nothing is delivered unless this owner still has the partition's claim."""
    takes_followers: bool = False
    """Whether records of one key may be delivered together, in order. No other record of the key is
    delivered until all of them are settled, or their locks have expired."""
    is_attempt: bool = False
    """Whether the member may ask for the same records again."""

    def refused(self, error: HeadraceError) -> AcquireReply:
        """The reply that carries `error`."""
        return AcquireReply(error)


@dataclass(slots=True)
class RepeatCommand:
    """Deliver again what a member holds of an attempt (`AcquireCommand.is_attempt`), for its answer
    may have been lost: the locks begin anew, and the deliveries are not counted again."""

    group_id: str
    member_id: str
    lock_ms: int = -1
    """-1: the group's"""

    def refused(self, error: HeadraceError) -> AcquireReply:
        """The reply that carries `error`."""
        return AcquireReply(error)


@dataclass(slots=True)
class SkipCommand:
    """Finish records without a delivery (control records, aborted ones), unless they are held."""

    group_id: str
    ranges: Sequence[tuple[int, int]]
    are_filtered: bool = False
    """Whether they are records that a receive does not select: these are acknowledged."""

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class TakeBackReply:
    """Answers a TakeBackCommand."""

    error: HeadraceError | None = None
    groups: Sequence[str] = ()
    """Those that finish the record without a delivery, sorted."""


@dataclass(slots=True)
class TakeBackCommand:
    """Finish a record without a delivery in every group that has begun, or in none: if it was
    delivered or finished in one, the error says so. Repeated, it has the same result, until a
    group's start passes the record. `is_dry_run`: change nothing.

    `is_own`: whether a group is of those that the caller may learn of. What was delivered to others
    neither refuses it nor is named."""

    offset: int
    is_dry_run: bool
    is_own: Callable[[str], bool] = lambda _group_id: True

    def refused(self, error: HeadraceError) -> TakeBackReply:
        """The reply that carries `error`."""
        return TakeBackReply(error)


@dataclass(slots=True)
class LearnCommand:
    """The rows of records from `rows_from` to `rows_end`, for a group that needs rows.

    `rows_from` is from PeekReply: if the group knows less by now, as after a reload, the command
    does nothing. Offsets without a row hold no record (control records, compacted ones):
    they are finished.
    """

    group_id: str
    rows_from: int
    rows: Sequence[RecordOrder]
    rows_end: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class SettleCommand:
    """Acknowledge, release, reject or renew what a member holds."""

    group_id: str
    member_id: str
    settlements: Sequence[Settlement]
    is_atomic: bool = True
    """One refusal refuses all (Kafka); otherwise settlements are independent (HTTP)."""

    def refused(self, error: HeadraceError) -> SettleReply:
        """The reply that carries `error`."""
        return SettleReply(error, [error] * len(self.settlements))


@dataclass(slots=True)
class ReleaseMemberCommand:
    """A member's session has ended: what it holds is available again, its deliveries counted."""

    group_id: str
    member_id: str

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class MoveStartCommand:
    """Reset the start to another offset, dropping all in-flight state (by an administrator)."""

    group_id: str
    start: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LogStartCommand:
    """The log start offset has moved: earlier records are finished in every group."""

    log_start_offset: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class DeadLetteredCommand:
    """Copies of [first, last] are in the dead letter topic, or could not be made."""

    group_id: str
    first: int
    last: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ParkKeyCommand:
    """Park the records of a key: none is delivered until the key is released."""

    group_id: str
    key: bytes
    key_hash: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ReleaseKeyCommand:
    """Deliver the records of a parked key again, from the first one on."""

    group_id: str
    key: bytes

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ListParkedCommand:
    """The parked keys of a group, or what parking these (key, hash) would do: those that are not
    parked have the time NOT_PARKED."""

    group_id: str
    keys: Sequence[tuple[bytes, int]] | None = None

    def refused(self, error: HeadraceError) -> ParkedReply:
        """The reply that carries `error`."""
        return ParkedReply(error)


@dataclass(slots=True)
class RemoveGroupCommand:
    """Delete the group on this partition."""

    group_id: str

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class DescribeCommand:
    """The positions of the groups; None: all of them."""

    group_ids: Sequence[str] | None = None

    def refused(self, error: HeadraceError) -> DescribeReply:
        """The reply that carries `error`."""
        return DescribeReply(error)


@dataclass(slots=True)
class StatesCommand:
    """The state of the records at these offsets in every group; changes nothing."""

    offsets: Sequence[int]

    def refused(self, error: HeadraceError) -> StatesReply:
        """The reply that carries `error`."""
        return StatesReply(error)


@dataclass(slots=True)
class ShareTickCommand:
    """Time has passed: sent when `next_deadline_ms` is reached."""

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ShareLoadedCommand:
    """The journal has been replayed."""

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


ShareCommand = (
    OpenShareGroupCommand
    | PeekCommand
    | ClaimCommand
    | AcquireCommand
    | RepeatCommand
    | LearnCommand
    | SkipCommand
    | TakeBackCommand
    | SettleCommand
    | ReleaseMemberCommand
    | MoveStartCommand
    | LogStartCommand
    | DeadLetteredCommand
    | ParkKeyCommand
    | ReleaseKeyCommand
    | ListParkedCommand
    | RemoveGroupCommand
    | DescribeCommand
    | StatesCommand
    | ShareTickCommand
    | ShareLoadedCommand
)
AnyShareReply = (
    ShareReply
    | ClaimReply
    | AcquireReply
    | PeekReply
    | SettleReply
    | DescribeReply
    | StatesReply
    | ParkedReply
    | TakeBackReply
)
