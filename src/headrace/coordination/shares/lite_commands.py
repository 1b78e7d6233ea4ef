"""Commands and replies of the lite topics in one data partition.

Invariants: as `commands`, whose settlements and replies are used here too. A lite topic is a name
in the headers of records; a group has a position in each, and a client gets those it subscribes to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.commands import (
    AcquireReply,
    DeadLetteredCommand,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    RepeatCommand,
    SettleCommand,
    SettleReply,
    ShareLoadedCommand,
    ShareReply,
    ShareTickCommand,
    StatesReply,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.config import ShareConfig
    from headrace.errors import HeadraceError

ADD, REMOVE, SET, LEAVE = range(4)
"""What a LiteSyncCommand does with its names: add them, remove them, subscribe to them and nothing
else, or end all subscriptions of the client. RocketMQ's numbers. Do not change: on the wire."""
ACTIONS: Final = (ADD, REMOVE, SET, LEAVE)


class LiteRow(NamedTuple):
    """A record of a lite topic."""

    offset: int
    name: str
    timestamp_ms: int


@dataclass(slots=True)
class LiteSyncReply:
    """Answers a LiteSyncCommand."""

    error: HeadraceError | None = None
    displaced: list[tuple[str, str]] = field(default_factory=list)
    """(client, name) of subscriptions that ended because an exclusive one took their place."""


@dataclass(slots=True)
class LitePeekReply:
    """The next records of a client, by offset."""

    error: HeadraceError | None = None
    offsets: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The lite topic of each."""
    wait_ms: int = -1
    """When there may be more without new records, -1: not by time alone."""


@dataclass(slots=True)
class OpenLiteCommand:
    """Open the group on this partition, unless it is open, and set what applies to it.

    `expiration_ms`: for all lite topics of the partition; -1: they do not expire. Not `begins`: the
    reply is GroupUnknown unless the group is open.
    """

    group_id: str
    config: ShareConfig
    expiration_ms: int = -1
    begins: bool = True

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LearnLiteCommand:
    """The lite topics of the records from `rows_from` to `rows_end`; other records have no row.

    Does nothing if the machine has read less by now, as after a reload, or more.
    """

    rows_from: int
    rows: Sequence[LiteRow]
    rows_end: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LiteCaughtUpCommand:
    """The log begins at `log_start_offset` and has no records from `end` on. Once all of them are
    known, lite topics whose last record is too old expire, and those without records are forgotten:
    some at a time, so that a command may have to follow. Before, a lite topic may look as if it had
    no records, or none that is new."""

    log_start_offset: int
    end: int

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class ForgetLiteCommand:
    """The records of these (lite topic, first offset, last one) are not there any more."""

    parts: Sequence[tuple[str, int, int]]

    def refused(self, error: HeadraceError) -> ShareReply:
        """The reply that carries `error`."""
        return ShareReply(error)


@dataclass(slots=True)
class LiteSyncCommand:
    """Change the subscriptions of a client, and keep the others, for the time of a session.

    `stay`: the client's stay at a broker. A LEAVE of a stay ends what was last subscribed to in it,
    as one may come after the client has returned; without a stay, it ends everything.
    """

    group_id: str
    client: str
    action: int
    names: Sequence[str]
    session_ms: int
    stay: str = ""

    def refused(self, error: HeadraceError) -> LiteSyncReply:
        """The reply that carries `error`."""
        return LiteSyncReply(error)


@dataclass(slots=True)
class LitePeekCommand:
    """Which records a client could get now; changes nothing."""

    group_id: str
    client: str
    records_max: int

    def refused(self, error: HeadraceError) -> LitePeekReply:
        """The reply that carries `error`."""
        return LitePeekReply(error)


@dataclass(slots=True)
class LiteAcquireCommand:
    """Deliver records of the client's lite topics to a member, of each lite topic in order.

    `offsets`: what the caller has read; from the first one of a lite topic that is not among them,
    no more of it is delivered.
    """

    group_id: str
    client: str
    member_id: str
    offsets: Sequence[int]
    records_max: int
    lock_ms: int = -1
    is_attempt: bool = False
    """Whether the member may ask for the same records again (RepeatCommand)."""

    def refused(self, error: HeadraceError) -> AcquireReply:
        """The reply that carries `error`."""
        return AcquireReply(error)


@dataclass(slots=True)
class LiteStatesCommand:
    """The state of records (offset, lite topic) in every group; changes nothing."""

    places: Sequence[tuple[int, str]]

    def refused(self, error: HeadraceError) -> StatesReply:
        """The reply that carries `error`."""
        return StatesReply(error)


LiteGroupCommand = (
    LiteSyncCommand
    | LitePeekCommand
    | LiteAcquireCommand
    | RepeatCommand
    | SettleCommand
    | ReleaseMemberCommand
    | DeadLetteredCommand
    | RemoveGroupCommand
)
LiteCommand = (
    LiteGroupCommand
    | OpenLiteCommand
    | LearnLiteCommand
    | ForgetLiteCommand
    | LiteCaughtUpCommand
    | LiteStatesCommand
    | ShareTickCommand
    | ShareLoadedCommand
)
AnyLiteReply = ShareReply | LiteSyncReply | LitePeekReply | AcquireReply | SettleReply | StatesReply
