"""Share sessions: the partitions that a member fetches from this broker (KIP-932).

Invariants: a session belongs to one member of one group and to the connection it was opened on;
when either ends, what the member holds here is released. Epochs detect lost and repeated requests.
Users and tenants have shares of the sessions (`tenant_shares`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenant_shares import NO_HOLDER, SharedPlaces
from headrace.errors import (
    RequestInvalid,
    ShareSessionEpochInvalid,
    ShareSessionLimitReached,
    ShareSessionUnknown,
)
from headrace.log.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from uuid import UUID

    from headrace.broker.security.tenant_shares import Holder

OPEN_EPOCH: Final = 0
CLOSE_EPOCH: Final = -1
SESSIONS_MAX: Final = 2_000
"""group.share.max.share.sessions"""
PARTITIONS_MAX: Final = 10_000
"""Per session."""
PARTITIONS_TOTAL_MAX: Final = 250_000
"""Of all sessions together: one takes about 250 bytes, also of a topic that does not exist."""
_INT32_MAX: Final = 2**31 - 1

PartitionKey = tuple["UUID", int]


class ShareSession:
    """The partitions that one member fetches here."""

    __slots__ = (
        "connection",
        "epoch",
        "group_id",
        "has_ended",
        "member_id",
        "partitions",
        "released",
        "waiters",
    )

    def __init__(
        self, group_id: str, member_id: str, connection: object, released: Callable[[], None]
    ) -> None:
        """`released`: gives its place back."""
        self.released = released
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[PartitionKey, None] = {}
        self.has_ended = False
        """Whether the session is closed: records acquired for it after that belong to no one."""
        self.waiters = Waiters()
        """Notified when it ends."""

    def served(self, key: PartitionKey) -> None:
        """Move it to the end, so that one busy partition does not starve the others."""
        if key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)


class ShareSessions:
    """All share sessions of one broker."""

    def __init__(self) -> None:
        self._partition_count = 0
        self._places = SharedPlaces("share sessions", SESSIONS_MAX, ShareSessionLimitReached)
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[object, dict[tuple[str, str], None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, group_id: str, member_id: str, connection: object, holder: Holder = NO_HOLDER
    ) -> tuple[ShareSession, ShareSession | None]:
        """(a new session, the one that it replaces, whose place it has). Raises
        ShareSessionLimitReached."""
        former = self._sessions.get((group_id, member_id))
        released = self._places.take(holder) if former is None else former.released
        if former is not None:
            self._end(former)
        session = ShareSession(group_id, member_id, connection, released)
        self._sessions[group_id, member_id] = session
        self._by_connection.setdefault(connection, {})[group_id, member_id] = None
        return session, former

    def resume(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The member's session, at its next epoch.

        Raises ShareSessionUnknown, ShareSessionEpochInvalid.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ShareSessionUnknown(
                f"member {member_id[:60]!r} has no share session here: open one with epoch 0"
            )
        if epoch == CLOSE_EPOCH:
            return session
        if epoch != session.epoch:
            raise ShareSessionEpochInvalid(
                f"the share session is at epoch {session.epoch}, not {epoch}: open a new "
                "session with epoch 0"
            )
        session.epoch = session.epoch % _INT32_MAX + 1
        return session

    def update(
        self,
        session: ShareSession,
        wanted: Collection[PartitionKey],
        forgotten: Collection[PartitionKey],
    ) -> None:
        """Change what a session fetches. Raises RequestInvalid, ShareSessionLimitReached: it has
        its former partitions then, of which it may hold records."""
        if session.has_ended or not (wanted or forgotten):
            return  # nothing is fetched for it, or nothing changes
        partitions = session.partitions | dict.fromkeys(wanted)
        for key in forgotten:
            partitions.pop(key, None)
        if len(partitions) > PARTITIONS_MAX:
            raise RequestInvalid(f"a share session can have at most {PARTITIONS_MAX} partitions")
        added = len(partitions) - len(session.partitions)
        if added > 0 and self._partition_count + added > PARTITIONS_TOTAL_MAX:
            raise ShareSessionLimitReached(
                f"the share sessions of this broker have their maximum of {PARTITIONS_TOTAL_MAX}"
                " partitions: try again when others have ended, or with fewer partitions"
            )
        session.partitions = partitions
        self._partition_count += added

    def close(self, group_id: str, member_id: str) -> ShareSession | None:
        """End the member's session; the caller releases what it holds."""
        session = self._sessions.get((group_id, member_id))
        if session is not None:
            self._end(session)
            session.released()
        return session

    def _end(self, session: ShareSession) -> None:
        key = session.group_id, session.member_id
        del self._sessions[key]
        self._partition_count -= len(session.partitions)
        session.has_ended = True
        session.waiters.wake()
        known = self._by_connection[session.connection]
        known.pop(key, None)
        if not known:
            del self._by_connection[session.connection]

    def disconnected(self, connection: object) -> list[ShareSession]:
        """The sessions that ended with a connection."""
        ended = [self.close(*key) for key in list(self._by_connection.get(connection, ()))]
        return [session for session in ended if session is not None]
