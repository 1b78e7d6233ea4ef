"""What a machine is: state that changes by records alone.

Invariants (all of `coordination/`): no I/O, no clock, no chance, no asyncio, no logging.
Time comes in as `now_ms`, fresh ids come in with the command.

- `decide(command, now_ms)` changes nothing. It says which records the command amounts to, and
  what to answer.
- `apply(record)` is the only thing that changes state: live, right after the host has handed
  the records to the log, and on replay alike.

Some state is deliberately not in the log: who waits for whom in a join barrier, when a session
ends, which tickets are unanswered. It is cheap to lose (clients ask again) and would cost a
write per heartbeat to keep. So there are two kinds of records. *Durable* ones have bytes
(`encode` returns them); *volatile* ones have none (`encode` returns None) and carry the rest.
Both go through `apply`, durable ones first, so a machine still changes in one place only, a
decision can be looked at before it happens, and a test can throw it away. What durable records
leave behind is by themselves enough to go on after a crash.

A command that cannot be answered yet (a join that waits for the others) is *parked*: its
decision has no reply, and a later decision brings (ticket, reply) among its `answers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.errors import HeadraceError

Record = TypeVar("Record")
Reply = TypeVar("Reply")
Command_contra = TypeVar("Command_contra", contravariant=True)


KeyValue = tuple[bytes | None, bytes | None]
"""A record as its log holds it."""


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
    """Applied after a marker, live and on replay: what waited for it counts, or does not."""

    producer_id: int
    is_commit: bool


@dataclass(slots=True)
class Decision(Generic[Record, Reply]):
    """What a command amounts to.

    `records` are applied in order. `reply` is None when the command is parked. `answers` are
    replies of commands that were parked earlier, or of this very command, by ticket. `effects` are
    requests to other partitions or brokers: the host performs them once the records are durable,
    and reports each outcome as a command. An effect may be lost in a crash and may be performed
    more than once, so a machine asks again for what is outstanding when it is loaded. `batch` says
    that the batch is part of a transaction, or its end; then the log may refuse it, and nothing is
    applied.
    """

    records: list[Record]
    reply: Reply | None = None
    answers: list[tuple[int, Reply]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    batch: InTransaction | EndsTransaction | None = None


class Refusable(Protocol):
    """A command knows the reply that carries an error."""

    def refused(self, error: HeadraceError) -> Any:
        """The reply that carries `error`."""
        ...


class Parkable(Refusable, Protocol):
    """A command that may be answered later, under its ticket."""

    ticket: int


class Machine(Protocol[Command_contra, Record, Reply]):
    """A state machine whose state is in a log."""

    def decide(self, command: Command_contra, now_ms: int) -> Decision[Record, Reply]:
        """Say what `command` amounts to at `now_ms`. Changes nothing."""
        ...

    def apply(self, record: Record) -> None:
        """Take one record into the state; records of one decision all in the same turn."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When to send the tick command. May be early, never late; None: nothing to wait for."""
        ...

    def encode(self, record: Record) -> tuple[bytes, bytes | None] | None:
        """The (key, value) of a durable record (None value: tombstone); None: it is volatile."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> Record | None:
        """The record that these bytes hold; None (and counted) if they are not understood."""
        ...

    def replayer(self) -> Callable[[list[KeyValue]], None]:
        """What applies records of the log, in order, until something else is applied.

        As decoding and applying each (`EachRecord`), or faster with the same outcome.
        """
        ...

    def decode_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None
    ) -> Record | None:
        """As `decode`, of a record in a transaction that may not have ended."""
        ...

    def ended(self, ended: TransactionEnded) -> Record | None:
        """The record to apply for a marker in the log."""
        ...

    def state_parts(self) -> Iterator[list[Record]]:
        """`state_records` in parts, each as the state is at the moment when it is asked for.

        So a snapshot can be written while the state goes on changing: what has changed after its
        part was taken, or has come anew, comes later in the log.
        """
        ...

    def state_records(self) -> list[Record]:
        """Durable records that by themselves rebuild the whole durable state.

        But for what open transactions hold: the log keeps their own records until they end.
        """
        ...


class EachRecord(Generic[Record]):
    """The plain way to read a log back: decode each record, and apply it."""

    __slots__ = ("_machine",)

    def __init__(self, machine: Machine[Any, Record, Any]) -> None:
        self._machine = machine

    def __call__(self, records: list[KeyValue]) -> None:
        """Apply what the log holds next, in its order."""
        machine = self._machine
        for key, value in records:
            record = machine.decode(key, value)
            if record is not None:
                machine.apply(record)


def decode_or_none(
    decode: Callable[[bytes, bytes | None], Any], key: bytes | None, value: bytes | None
) -> Any:
    """What these bytes hold; None if that is not understood: one bad record must not stop all."""
    if not key:
        return None
    try:
        return decode(key, value)
    except RecordInvalid:
        return None
