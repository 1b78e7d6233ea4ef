"""What copiers read: a member of a group, or partitions that are assigned by hand.

Invariants: polled records stay with the copier until they are committed or it loses them, so it
never seeks back.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.committed_reads import fetch_committed, wait_for_progress
from headrace_verify.blackbox.consumers import (
    GENERATION_AT,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
)
from headrace_verify.blackbox.context import now_ns
from headrace_verify.blackbox.copying import BATCH_RECORDS, Polled
from headrace_verify.blackbox.routing import RETRY_S, Connection, Place
from headrace_verify.history import ASSIGN, OK, REVOKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.blackbox.context import Context


class _Floors:
    """A group's committed offset in each partition, looked up on first use."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._connection = Connection(context)
        self._known: dict[tuple[str, int], int] = {}

    def forget(self) -> None:
        """Look it up again: it may have moved."""
        self._known.clear()

    def of(self, topic: str, part: int) -> int | None:
        """The offset from which records are to be copied; None at the end of the run."""
        if (topic, part) not in self._known:
            spec = self._context.spec
            assert spec.group is not None
            found = wait_for_progress(self._context, self._connection, spec.group, spec.topics)
            if found is None:
                return None
            self._known = {place: max(0, offset) for place, offset in found.items()}
        return self._known[topic, part]

    def close(self) -> None:
        """Stop looking up."""
        self._connection.drop()


class GroupSource:
    """See Source: a librdkafka group member, fenced by the group's generations."""

    def __init__(self, context: Context) -> None:
        from confluent_kafka import Consumer

        self._context = context
        self._floors = _Floors(context)
        self._pending: list[Polled] = []
        self._rebalances = 0
        self.metadata: Any = None
        self.identity: tuple[str, int] = ("", -1)
        self._consumer = Consumer(
            {
                "bootstrap.servers": context.spec.bootstrap,
                "group.id": context.spec.group,
                "client.id": context.spec.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "max.poll.interval.ms": 60_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 250,
                "socket.timeout.ms": 11_000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(
            list(context.spec.topics),
            on_assign=partial(self._changed, ASSIGN),
            on_revoke=partial(self._changed, REVOKE),
            on_lost=partial(self._changed, REVOKE),
        )

    def _changed(self, what: str, _consumer: Any, parts: list[Any]) -> None:
        self._rebalances += 1
        self._pending.clear()
        self._floors.forget()
        member, generation = self._whoami()
        listed = self._context.owned((part.topic, part.partition) for part in parts)
        fields: dict[str, Any] = {"group": self._context.spec.group, "parts": listed}
        if what == ASSIGN:
            fields |= {"member": member, "gen": generation}
        self._context.history.write(OK, what, **fields)

    def _whoami(self) -> tuple[str, int]:
        metadata = self._consumer.consumer_group_metadata()
        generation = int.from_bytes(metadata[GENERATION_AT], sys.byteorder, signed=True)
        return self._consumer.memberid() or "", generation

    def restart(self) -> None:
        """See Source."""
        self._floors.forget()

    def poll(self) -> Sequence[Polled]:
        """See Source."""
        fresh: list[tuple[int, Polled, bytes | None]] = []
        while not fresh or len(self._pending) < BATCH_RECORDS:
            # At least once, however much is pending: rebalances happen here.
            since_ns, before = now_ns(), self._rebalances
            message: Any = self._consumer.poll(0 if self._pending else 0.1)
            if self._rebalances != before:
                fresh.clear()
            if message is None or message.error() is not None:
                break
            record = Polled(message.topic(), message.partition(), message.offset())
            fresh.append((since_ns, record, message.value()))
            self._pending.append(record)
        for since_ns, record, data in fresh:
            found = [(record.part, record.offset, data)]
            self._context.polled(since_ns, record.topic, found, group=self._context.spec.group)
        # Read now, not when offsets are sent: a member that was removed meanwhile has none, and its
        # commit would be taken for that of a client without a group.
        self.identity = self._whoami()
        self.metadata = self._consumer.consumer_group_metadata()
        if not self.identity[0] or self.identity[1] < 0:
            return []
        return self._rest()

    def _rest(self) -> Sequence[Polled]:
        """What is pending and not committed yet."""
        rest = []
        for record in self._pending:
            floor = self._floors.of(record.topic, record.part)
            if floor is None:
                return []
            if record.offset >= floor:
                rest.append(record)
        self._pending = rest
        return list(rest)

    def done(self) -> None:
        """See Source."""
        self._pending.clear()

    def close(self) -> None:
        """See Source."""
        self._consumer.close()
        self._floors.close()


class AssignedSource:
    """See Source: assigns all partitions manually, as one process per transactional id does."""

    metadata: Any = None
    identity: tuple[str, int] = ("", -1)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._floors = _Floors(context)
        self._connection = Connection(context)
        self._positions: dict[Place, int] = {}
        self._pending: list[Polled] = []

    def restart(self) -> None:
        """See Source."""
        self._floors.forget()
        self._positions.clear()
        self._pending.clear()

    def poll(self) -> Sequence[Polled]:
        """See Source."""
        if not self._pending:
            try:
                self._fetch()
            except OSError as error:
                self._connection.failed(error)
                self._context.pause(RETRY_S)
        return self._pending[:BATCH_RECORDS]

    def _fetch(self) -> None:
        """Raises OSError."""
        if not self._positions:
            self._begin()
        for place, position in self._positions.items():
            since_ns = now_ns()
            found = fetch_committed(self._connection.wire(place), place, position)
            records = [(place.part, offset, value) for offset, value in found.records]
            self._context.polled(since_ns, place.topic, records)
            self._positions[place] = found.next_offset
            self._pending += [Polled(*place, offset) for offset, _ in found.records]

    def _begin(self) -> None:
        context = self._context
        positions = {}
        for place in context.places:
            floor = self._floors.of(*place)
            if floor is None:
                return
            positions[Place(*place)] = floor
        self._positions = positions
        context.history.write(OK, ASSIGN, parts=context.owned(context.places))

    def done(self) -> None:
        """See Source."""
        del self._pending[:BATCH_RECORDS]

    def close(self) -> None:
        """See Source."""
        self._connection.drop()
        self._floors.close()
