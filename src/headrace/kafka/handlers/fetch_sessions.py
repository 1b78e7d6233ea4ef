"""Fetch sessions: a client names its partitions once, and then only changes (KIP-227).

Invariants: knows sessions, not logs. A session belongs to the principal that created it, on any of
its connections; to others it does not exist, so that a guessed id neither shows which topics a
client reads nor ends its session. When there are too many, one that was idle for long is evicted;
while there is none, a client fetches without a session, so that clients do not evict each other's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import FetchSessionEpochInvalid, FetchSessionUnknown
from headrace.records.identifiers import TOPIC_NAME_SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.security.principal import Principal
    from headrace.kafka.wire.fetch import FetchPartition, FetchRequest, FetchResult
    from headrace.runtime.randomness import Randomness

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_INT32_MAX = 2**31 - 1
PARTITIONS_MAX = 10_000
"""Per session; a client with more partitions fetches without one."""
PARTITIONS_TOTAL_MAX: Final = 250_000
"""Of all sessions together: one takes about 400 bytes, also of a topic that does not exist."""
NAME_BYTES_MAX: Final = TOPIC_NAME_SIZE_MAX + 36
"""Of a topic and its tenant's prefix. A longer name is no topic's, and a request may have 8 MiB of
such names, which a session would keep."""
EVICTABLE_NS: Final = 120_000_000_000
"""How long a session was not used, as in Kafka."""


class CachedPartition:
    """One partition of a session: the client's request, and what was last returned for it."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    """What one client is fetching."""

    __slots__ = ("epoch", "id", "owner", "partitions", "used_ns")

    def __init__(
        self,
        session_id: int,
        owner: Principal | None,
        partitions: Iterable[FetchPartition],
        used_ns: int,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.used_ns = used_ns
        self.epoch = 1
        self.partitions = {(p.topic, p.partition): CachedPartition(p) for p in partitions}

    def update(self, request: FetchRequest) -> None:
        """Apply the changes of a request."""
        for key in request.forgotten:
            self.partitions.pop(key, None)
        for wanted in request.partitions:
            cached = self.partitions.get((wanted.topic, wanted.partition))
            if cached is None:
                self.partitions[wanted.topic, wanted.partition] = CachedPartition(wanted)
            else:
                cached.wanted = wanted

    def updates(self, results: list[FetchResult]) -> list[FetchResult]:
        """Those of `results` that the client does not have yet; records that it has them now."""
        updates: list[FetchResult] = []
        for result in results:
            key = (result.topic, result.partition)
            cached = self.partitions.get(key)
            if cached is None:
                continue
            if (
                len(result.records)
                or result.error_code
                or cached.high_watermark != result.high_watermark
                or cached.log_start_offset != result.log_start_offset
            ):
                updates.append(result)
            # An error is returned again until it has cleared.
            cached.high_watermark = -1 if result.error_code else result.high_watermark
            cached.log_start_offset = result.log_start_offset
            if len(result.records):
                # Move it to the end, so that full responses starve no partition.
                self.partitions[key] = self.partitions.pop(key)
        return updates


class FetchSessions:
    """All sessions of one broker."""

    def __init__(self, randomness: Randomness, sessions_max: int) -> None:
        self._randomness = randomness
        self._sessions_max = sessions_max
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(
        self, request: FetchRequest, principal: Principal | None, now_ns: int
    ) -> tuple[FetchSession | None, bool]:
        """(the request's session or None, whether the response may omit what is known).

        `principal`: who sends the request, at `now_ns`.

        Raises FetchSessionUnknown, FetchSessionEpochInvalid.
        """
        session = self._of(request.session_id, principal)
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            if session is not None:
                self._end(session)
            if (
                request.session_epoch == FINAL_EPOCH
                or len(request.partitions) > PARTITIONS_MAX
                or _has_long_name(request)
            ):
                return None, False
            return self._open(request, principal, now_ns), False
        if session is None:
            raise FetchSessionUnknown(
                f"fetch session {request.session_id} does not exist or was evicted"
            )
        if request.session_epoch != session.epoch:
            raise FetchSessionEpochInvalid(
                f"fetch session {session.id} is at epoch {session.epoch}, not"
                f" {request.session_epoch}"
            )
        session.epoch = session.epoch % _INT32_MAX + 1
        before = len(session.partitions)
        is_too_large = _has_long_name(request)
        session.update(request)
        self._partition_count += len(session.partitions) - before
        is_too_large = is_too_large or len(session.partitions) > PARTITIONS_MAX
        if is_too_large or self._partition_count > PARTITIONS_TOTAL_MAX:
            self._end(session)
            raise FetchSessionUnknown(
                f"fetch session {session.id} exceeds {PARTITIONS_MAX} partitions or names of"
                f" {NAME_BYTES_MAX} bytes, or all sessions {PARTITIONS_TOTAL_MAX} partitions: fetch"
                " without a session"
            )
        session.used_ns = now_ns
        # The first one was not used for longest.
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session, True

    def _of(self, session_id: int, principal: Principal | None) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if (
            session is not None
            and session.owner is not principal  # the same object on one connection
            and session.owner != principal
        ):
            return None
        return session

    def _open(
        self, request: FetchRequest, owner: Principal | None, now_ns: int
    ) -> FetchSession | None:
        if not request.partitions:
            return None
        count = self._partition_count + len(request.partitions)
        while len(self._sessions) >= self._sessions_max or count > PARTITIONS_TOTAL_MAX:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ns - oldest.used_ns < EVICTABLE_NS:
                return None
            count -= len(oldest.partitions)
            self._end(oldest)
        session_id = 1 + self._randomness.below(_INT32_MAX - 1)
        while session_id in self._sessions:
            session_id = 1 + self._randomness.below(_INT32_MAX - 1)
        session = FetchSession(session_id, owner, request.partitions, now_ns)
        self._sessions[session_id] = session
        self._partition_count += len(session.partitions)
        return session

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._partition_count -= len(session.partitions)


def _has_long_name(request: FetchRequest) -> bool:
    return any(len(wanted.topic) > NAME_BYTES_MAX for wanted in request.partitions)
