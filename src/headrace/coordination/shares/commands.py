"""What the share partitions of one data partition are asked, and what they answer.

Invariants: plain slotted dataclasses; times are int milliseconds; an error is an instance of a
HeadraceError or None. Kafka's share groups, HTTP's queues and RocketMQ's pop are faces of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.config import ShareConfig
    from headrace.errors import HeadraceError

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Kafka's types of acknowledgement. Do not change: on the wire."""
UNDELIVERED: Final = 128
"""Not of Kafka: the record did not reach a consumer, so the delivery does not count. Outside of
the int8 of Kafka's types, so that no Kafka client can send it."""
KINDS: Final = (GAP, ACCEPT, RELEASE, REJECT, RENEW, UNDELIVERED)

FAILED_BY_CONSUMER: Final = "rejected by the consumer"
FAILED_BY_COUNT: Final = "delivery count limit reached"
FAILED_BY_EXPIRY: Final = "expired"


class Row(NamedTuple):
    """What the engine has to know of one record to deliver it in an order of its own."""

    offset: int
    key_hash: int
    """Equal for records of one key. Collisions cost parallelism, never order. A negative one is of
    this record alone."""
    priority: int = 0
    """0 to 9; higher ones are delivered first"""
    expires_ms: int = -1
    is_wanted: bool = True
    """False where the group's filter does not want the record"""


class Acquired(NamedTuple):
    """Records delivered to one member: [first, last], for the `deliveries`-th time."""

    first: int
    last: int
    deliveries: int


class Settlement(NamedTuple):
    """What a member says of the records [first, last] that it holds."""

    first: int
    last: int
    kind: int
    delay_ms: int = -1
    """RELEASE: the wait before the next delivery, -1: the group's back-off. RENEW: the new lock,
    -1: the group's."""
    reason: str = ""
    """REJECT: for the dead letter"""


class DeadLetter(NamedTuple):
    """Records that were given up and wait until copies of them are in the dead letter topic."""

    group_id: str
    first: int
    last: int
    deliveries: int
    reason: str
    given_up_ms: int
    """When they were given up: stored with them, so it tells one time from another."""


class ShareDescription(NamedTuple):
    """Where one group stands on the partition."""

    group_id: str
    start: int
    end: int
    acquired_records: int
    finished_records: int
    archiving_records: int
    next_lock_end_ms: int


class DeliveryState(NamedTuple):
    """What became of one record in one group."""

    group_id: str
    state: str
    """`finished` where the start offset has passed it, `waiting` where it was never delivered, else
    one of the window's states."""
    deliveries: int
    owner: str
    """The member that holds it, while one does."""
    at_ms: int
    """The end of the lock, or the earliest next delivery; 0: none."""


class ParkedKey(NamedTuple):
    """A key whose records a group sets aside."""

    key: bytes
    at_ms: int
    records: int
    """That are known: more may follow in the log."""


@dataclass(slots=True)
class ShareReply:
    """Answers what has nothing more to say."""

    error: HeadraceError | None = None


@dataclass(slots=True)
class AcquireReply:
    """The records that were delivered, by offset."""

    error: HeadraceError | None = None
    acquired: list[Acquired] = field(default_factory=list)


@dataclass(slots=True)
class PeekReply:
    """What could be acquired now: ranges in the order of delivery."""

    error: HeadraceError | None = None
    ranges: list[tuple[int, int]] = field(default_factory=list)
    rows_from: int = -1
    """The offset from which rows are wanted (LearnCommand), -1: none are."""
    reads_ahead: bool = False
    """Whether these rows come first, though there are `ranges`: some may go before them."""
    wait_ms: int = -1
    """After which time more can be had though nothing new comes, -1: not by time alone."""


@dataclass(slots=True)
class SettleReply:
    """One error or None for each settlement."""

    error: HeadraceError | None = None
    errors: list[HeadraceError | None] = field(default_factory=list)


@dataclass(slots=True)
class DescribeReply:
    """Where the groups stand, by group id."""

    error: HeadraceError | None = None
    groups: list[ShareDescription] = field(default_factory=list)


@dataclass(slots=True)
class StatesReply:
    """For each offset that was asked for, what became of the record in each group, by group id."""

    error: HeadraceError | None = None
    states: list[list[DeliveryState]] = field(default_factory=list)


@dataclass(slots=True)
class ParkedReply:
    """The keys whose records a group sets aside, in the order of their bytes."""

    error: HeadraceError | None = None
    keys: list[ParkedKey] = field(default_factory=list)


@dataclass(slots=True)
class OpenCommand:
    """Make the group known to this partition, from `start` on, unless it is; set its config."""

    group_id: str
    start: int
    config: ShareConfig

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class PeekCommand:
    """Say what could be acquired of the records before `readable_end`; change nothing."""

    group_id: str
    readable_end: int
    records_max: int

    def refused(self, error: HeadraceError) -> PeekReply:
        """The reply that carries `error`."""
        return PeekReply(error)


@dataclass(slots=True)
class ClaimReply:
    """Whether the partition's records are the caller's now."""

    error: HeadraceError | None = None
    is_owner: bool = False
    wait_ms: int = 0
    """After which time they may be free, unless they are the caller's."""


@dataclass(slots=True)
class ClaimCommand:
    """Take the partition of a group whose subscription is not shared, or keep it.

    It is kept for the group's lock time, or `lock_ms` if that is longer, and while any of its
    records is in flight.
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

    `within`: ranges of offsets that the caller has at hand (whole batches), ascending.
    """

    group_id: str
    member_id: str
    within: Sequence[tuple[int, int]]
    records_max: int
    is_strict: bool = False
    """Never more than `records_max`; else whole ranges of `within` are finished."""
    lock_ms: int = -1
    """-1: the group's"""
    owner: str = ""
    """In a sticky group: nothing is delivered unless this one still has the partition's claim."""

    def refused(self, error: HeadraceError) -> AcquireReply:
        """The reply that carries `error`."""
        return AcquireReply(error)


@dataclass(slots=True)
class SkipCommand:
    """Finish records without a delivery (control records, aborted ones), unless they are held."""

    group_id: str
    ranges: Sequence[tuple[int, int]]

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LearnCommand:
    """What records hold, from `rows_from` to `rows_end`, for a group that needs rows.

    `rows_from` is what `PeekReply.rows_from` said: where the group knows less by now, as after a
    reload, the command does nothing. Offsets without a row hold no record (control records,
    compacted ones): they are finished.
    """

    group_id: str
    rows_from: int
    rows: Sequence[Row]
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
    """One that is refused refuses all (Kafka); else each stands for itself (HTTP)."""

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
    """Begin at another offset: everything in flight is forgotten (an administrator's reset)."""

    group_id: str
    start: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LogStartCommand:
    """The log starts here now: what lay before is finished, in every group."""

    log_start_offset: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class DeadLetteredCommand:
    """Copies of [first, last] are in the dead letter topic, or were given up."""

    group_id: str
    first: int
    last: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ParkKeyCommand:
    """Set the records of a key aside: none is delivered until the key is released."""

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
    """The parked keys of a group."""

    group_id: str

    def refused(self, error: HeadraceError) -> ParkedReply:
        """The reply that carries `error`."""
        return ParkedReply(error)


@dataclass(slots=True)
class RemoveGroupCommand:
    """Forget the group on this partition."""

    group_id: str

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class DescribeCommand:
    """Where the groups stand; None: all of them."""

    group_ids: Sequence[str] | None = None

    def refused(self, error: HeadraceError) -> DescribeReply:
        """The reply that carries `error`."""
        return DescribeReply(error)


@dataclass(slots=True)
class StatesCommand:
    """What became of the records at these offsets, in every group; changes nothing."""

    offsets: Sequence[int]

    def refused(self, error: HeadraceError) -> StatesReply:
        """The reply that carries `error`."""
        return StatesReply(error)


@dataclass(slots=True)
class ShareTickCommand:
    """Time has passed: the host sends it when `next_deadline_ms` is reached."""

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
    OpenCommand
    | PeekCommand
    | ClaimCommand
    | AcquireCommand
    | LearnCommand
    | SkipCommand
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
)
