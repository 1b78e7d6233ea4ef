"""Commands and replies of a partition's timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.timers.config import HalfConfig
    from headrace.coordination.timers.state_records import Settled, StoredOrigin
    from headrace.errors import HeadraceError


@dataclass(slots=True)
class TimerReply:
    """Answers commands that return nothing but an error."""

    error: HeadraceError | None = None
    is_done: bool = True
    """Whether the command changed anything."""


class _Plain:
    """A command answered by TimerReply."""

    __slots__ = ()

    def refused(self, error: HeadraceError) -> TimerReply:
        """The reply that carries `error`."""
        return TimerReply(error, False)


class NewTimer(NamedTuple):
    """A record to keep until `due_ms`; a half message if `group` is not empty."""

    due_ms: int
    """0 for a half message that is due as soon as it is committed."""
    timestamp_ms: int
    tag: int
    body: bytes
    group: str = ""
    message_id: str = ""


@dataclass(slots=True)
class AddReply:
    """`offsets`: where the records are stored, in order; None if they had been added before."""

    error: HeadraceError | None = None
    offsets: range | None = None


@dataclass(slots=True)
class AddCommand:
    """Store the records of one batch. `origin`: for an idempotent producer, else None."""

    timers: Sequence[NewTimer]
    origin: StoredOrigin | None = None

    def refused(self, error: HeadraceError) -> AddReply:
        """The reply that carries `error`."""
        return AddReply(error)


@dataclass(slots=True)
class CancelCommand(_Plain):
    """Cancel the record at (due_ms, offset)."""

    due_ms: int
    offset: int


@dataclass(slots=True)
class AdvanceCommand(_Plain):
    """Store the record at (due_ms, offset) anew, as `timer`, due at once."""

    due_ms: int
    offset: int
    timer: NewTimer


@dataclass(slots=True)
class DeliveredCommand(_Plain):
    """The deliveries with sequences before `upto` are durable in the partition's log."""

    upto: int


@dataclass(slots=True)
class OpenTimersCommand(_Plain):
    """Use this producer id, unless there is one."""

    producer_id: int


@dataclass(slots=True)
class ConfigureCommand(_Plain):
    """The topic's settings."""

    config: HalfConfig


@dataclass(slots=True)
class TimerTickCommand(_Plain):
    """Time has passed."""


@dataclass(slots=True)
class TimersLoadedCommand(_Plain):
    """The log has been replayed."""


# --- half messages -------------------------------------------------------------------------------


@dataclass(slots=True)
class SettleHalfReply:
    """`outcome`: the outcome of the half message, reached now or before."""

    error: HeadraceError | None = None
    outcome: Settled | None = None
    count: int = 0
    """Messages that were settled now; 0: there was an outcome already."""


@dataclass(slots=True)
class SettleHalfCommand:
    """Commit or roll back a half message by its number, or all pending ones with a message id
    (`number` -1), up to SETTLED_AT_ONCE."""

    number: int
    message_id: str
    is_commit: bool
    reason: str = ""
    is_dry_run: bool = False
    """Count all of them, change nothing."""

    def refused(self, error: HeadraceError) -> SettleHalfReply:
        """The reply that carries `error`."""
        return SettleHalfReply(error)


@dataclass(slots=True)
class Half:
    """A half message that awaits its producer's decision."""

    number: int
    """The offset under which it was first stored."""
    offset: int
    """Where it is stored."""
    due_ms: int
    timestamp_ms: int
    tag: int
    received_ms: int
    next_check_ms: int
    checks: int
    group: str
    message_id: str


@dataclass(slots=True)
class PollReply:
    """Half messages to check back with a producer."""

    error: HeadraceError | None = None
    halves: list[Half] = field(default_factory=list)


@dataclass(slots=True)
class PollCommand:
    """Take the check-backs of a producer group that no producer has taken yet."""

    group: str
    count_max: int

    def refused(self, error: HeadraceError) -> PollReply:
        """The reply that carries `error`."""
        return PollReply(error)


# --- checkpoints and space -----------------------------------------------------------------------


@dataclass(slots=True)
class BeginCheckpointCommand(_Plain):
    """Start writing the state again."""


@dataclass(slots=True)
class SavePartsCommand(_Plain):
    """Write the next parts of the schedule; `is_done` False: all of them are written."""

    count_max: int


@dataclass(slots=True)
class EndCheckpointCommand(_Plain):
    """The checkpoint is complete. Refused if another one began meanwhile."""


MISSING_MAX: Final = 4_096
"""Approximate number of records named in a reply to MoveCommand."""


class Copy(NamedTuple):
    """A record read from the companion log, to be rewritten if it is needed."""

    due_ms: int
    timestamp_ms: int
    tag: int
    offset: int
    number: int
    body: bytes


@dataclass(slots=True)
class MoveReply:
    """Answers MoveCommand."""

    error: HeadraceError | None = None
    missing: Sequence[int] = ()
    """Offsets of records that have to move with the copies; nothing was written. Incomplete if
    there are more than MISSING_MAX."""


@dataclass(slots=True)
class MoveCommand:
    """Rewrite those of the copies that are still needed, so that the log may be trimmed.

    `copies` ascend by offset. Records that are due in the same millisecond are delivered in offset
    order, so those after a copy have to move with it (`is_order_kept`).
    """

    copies: Sequence[Copy]
    is_order_kept: bool = True

    def refused(self, error: HeadraceError) -> MoveReply:
        """The reply that carries `error`."""
        return MoveReply(error)


class Deliver(NamedTuple):
    """An effect: append the records at these offsets to the partition's log, in order."""

    producer_id: int
    first: int
    """The sequence of the first one; sequences count from 0 and never wrap."""
    offsets: tuple[int, ...]


class ChecksDue(NamedTuple):
    """An effect: producers of these groups can poll."""

    groups: tuple[str, ...]


Effect = Deliver | ChecksDue
TimerCommand = (
    AddCommand
    | CancelCommand
    | AdvanceCommand
    | DeliveredCommand
    | OpenTimersCommand
    | ConfigureCommand
    | TimerTickCommand
    | TimersLoadedCommand
    | SettleHalfCommand
    | PollCommand
    | BeginCheckpointCommand
    | SavePartsCommand
    | EndCheckpointCommand
    | MoveCommand
)
AnyTimerReply = TimerReply | AddReply | SettleHalfReply | PollReply | MoveReply
