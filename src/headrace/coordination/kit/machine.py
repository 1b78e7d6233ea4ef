"""The interface of a machine: state that changes through records only.

Invariants (all of `coordination/`): no I/O, no clock, no randomness, no asyncio, no logging. Time
is passed in as `now_ms`, fresh ids come with the command.

- `decide(command, now_ms)` changes nothing. It returns the records that the command results in, and
  the reply.
- `apply(record)` is the only method that changes state: live, right after the host has passed the
  records to the log, and on replay alike. One function besides: what `replayer` returns may do the
  work of many at once while a log is read, if the state is the same (`OffsetReplay` in
  `groups/group_state.py`, which a property test compares with `EachRecord`).

Some state is deliberately not logged: which members wait in a join barrier, when a session ends,
which tickets are unanswered. Losing it is cheap, since clients retry, and storing it would cost a
write per heartbeat. So there are two kinds of records. *Durable* records have bytes (`encode`
returns them); *volatile* records have none (`encode` returns None) and carry the rest. Both go
through `apply`, durable ones first, so a machine still changes in one place only, a decision can be
inspected before it takes effect, and a test can discard it. The durable records alone suffice to
continue after a crash.

A command that cannot be answered yet (a join that waits for the other members) is *parked*: its
decision has no reply, and a later decision has (ticket, reply) among its `answers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.errors import HeadraceError

Record = TypeVar("Record")
Reply = TypeVar("Reply")
Reply_co = TypeVar("Reply_co", covariant=True)
Command_contra = TypeVar("Command_contra", contravariant=True)


KeyValue = tuple[bytes | None, bytes | None]
"""A record as stored in the log."""


class InTransaction(NamedTuple):
    """The records of a decision belong to a producer's transaction: they wait for its marker."""

    producer_id: int
    producer_epoch: int


class EndsTransaction(NamedTuple):
    """A decision appends the marker of a producer's transaction, and no other records."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int


class TransactionEnded(NamedTuple):
    """Applied after a marker, live and on replay: pending records of the transaction take effect or
    are dropped."""

    producer_id: int
    is_commit: bool


@dataclass(slots=True)
class Decision(Generic[Record, Reply]):
    """The outcome of a command.

    `records` are applied in order. `reply` is None when the command is parked. `answers` are
    replies to commands that were parked earlier, or to this very command, by ticket. `effects` are
    requests to other partitions or brokers: the host performs them once the records are durable,
    and reports each outcome as a command. An effect may be lost in a crash and may be performed
    more than once, so a machine requests outstanding effects again when it is loaded. `batch` marks
    the batch as part of a transaction, or as its end; the log may then refuse it, and nothing is
    applied.
    """

    records: list[Record]
    reply: Reply | None = None
    answers: list[tuple[int, Reply]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    batch: InTransaction | EndsTransaction | None = None


class Command(Protocol[Reply_co]):
    """A command names its reply: what `refused` returns is what a machine answers it with, and what
    submitting it returns."""

    def refused(self, error: HeadraceError) -> Reply_co:
        """The reply that carries `error`."""
        ...


class HasError(Protocol):
    """A reply that fails as a whole or not at all."""

    error: HeadraceError | None


Answer = TypeVar("Answer", bound=HasError)


@dataclass(slots=True)
class Parkable:
    """A command that may be answered later, under its ticket, which the host sets."""

    ticket: int = field(default=0, kw_only=True)


class Machine(Protocol[Command_contra, Record, Reply]):
    """A state machine whose state is in a log."""

    def decide(self, command: Command_contra, now_ms: int) -> Decision[Record, Reply]:
        """Decide the outcome of `command` at `now_ms`. Changes nothing."""
        ...

    def apply(self, record: Record) -> None:
        """Apply one record to the state; all records of one decision in the same turn."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When to send the tick command. May be early, never late; None: no deadline."""
        ...

    def validate(self) -> None:
        """Assert what holds between commands, by looking at the whole state. For tests and
        simulation, where the host calls it after each decision."""
        ...

    def encode(self, record: Record) -> tuple[bytes, bytes | None] | None:
        """The (key, value) of a durable record (None value: tombstone); None: it is volatile."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        """The record that these bytes encode; None (and counted) if they cannot be decoded."""
        ...

    def replayer(self) -> Callable[[list[KeyValue]], None]:
        """A function that applies records of the log, in order, until something else is applied.

        Equivalent to decoding and applying each record (`EachRecord`), possibly faster.
        """
        ...

    def decode_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None
    ) -> Record | None:
        """As `decode`, for a record of a transaction that may not have ended."""
        ...

    def ended(self, ended: TransactionEnded) -> Record | None:
        """The record to apply for a marker in the log."""
        ...

    def state_parts(self) -> Iterator[list[Record]]:
        """`state_records` in parts, each taken at the moment it is requested.

        A snapshot can thus be written while the state changes: changes after a part was taken come
        later in the log.
        """
        ...

    def state_records(self) -> list[Record]:
        """Durable records that by themselves rebuild the whole durable state.

        Except for open transactions: the log keeps their records until they end.
        """
        ...


class Replayed(Protocol[Record]):
    """Of a machine: what a replay calls."""

    def apply(self, record: Record) -> None:
        """See Machine."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        """See Machine."""
        ...


class EachRecord(Generic[Record]):
    """The plain replay: decode each record, and apply it."""

    __slots__ = ("_machine",)

    def __init__(self, machine: Replayed[Record]) -> None:
        self._machine = machine

    def __call__(self, records: list[KeyValue]) -> None:
        """Apply the next records of the log, in order."""
        machine = self._machine
        for key, value in records:
            record = machine.decode(key, value)
            if record is not None:
                machine.apply(record)


def decode_or_none(
    decode: Callable[[bytes, bytes | None], Any], key: bytes | None, value: bytes | None
) -> Any:
    """Decode these bytes; None if that fails: one bad record must not prevent loading all
    others."""
    if not key:
        return None
    try:
        return decode(key, value)
    except RecordInvalid:
        return None


class PlainJournal(ABC, Generic[Record]):
    """Part of machines whose log has no transactions, and is replayed record by record.

    `skipped_count`: records of the log that could not be decoded.
    """

    def __init__(self, decode: Callable[[bytes, bytes | None], Record | None]) -> None:
        """`decode`: of stored bytes; None for what a newer version wrote. Raises RecordInvalid."""
        self._decode = decode
        self.skipped_count = 0

    @abstractmethod
    def apply(self, record: Record) -> None:
        """See Machine."""

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        """See Machine."""
        record: Record | None = decode_or_none(self._decode, key, value)
        if record is None:
            self.skipped_count += 1
        return record

    def replayer(self) -> Callable[[list[KeyValue]], None]:
        """See Machine."""
        return EachRecord(self)

    def decode_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None
    ) -> Record | None:
        """See Machine."""
        self.skipped_count += 1
        return None

    def ended(self, ended: TransactionEnded) -> Record | None:
        """See Machine."""
        return None
