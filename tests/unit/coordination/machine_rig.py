"""Drives a TransactionMachine without a host: a log in a list, effects in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.kit.host_commands import LoadedCommand, TickCommand
from headrace.coordination.transactions.commands import (
    AddPartitionsCommand,
    DescribeTransactionCommand,
    EndTransactionCommand,
    InitProducerIdCommand,
    MarkersWrittenCommand,
    WriteMarkers,
)
from headrace.coordination.transactions.config import TransactionConfig
from headrace.coordination.transactions.state_records import STATE_NAMES
from headrace.coordination.transactions.transaction_machine import TransactionMachine

if TYPE_CHECKING:
    from headrace.coordination.transactions.commands import ProducerReply

START_MS = 1_000_000


class TransactionHarness:
    """A machine and the world around it. `check_purity`: compare the state around each decision."""

    def __init__(
        self, config: TransactionConfig | None = None, *, check_purity: bool = True
    ) -> None:
        self.config = config or TransactionConfig()
        self.check_purity = check_purity
        self.now_ms = START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.effects: list[WriteMarkers] = []
        self.next_producer_id = 1000
        self.machine = TransactionMachine(self.config)
        self.send(LoadedCommand())

    def send(self, command: Any) -> Any:
        """Run one command, with a fresh producer id where it wants one; its reply."""
        reply = self._run(command)
        if getattr(reply, "wants_producer_id", False):
            command.fresh_producer_id = self.next_producer_id
            self.next_producer_id += 1
            reply = self._run(command)
            assert not reply.wants_producer_id
        return reply

    def _run(self, command: Any) -> Any:
        machine = self.machine
        before = self.picture() if self.check_purity else None
        decision = machine.decide(command, self.now_ms)
        if self.check_purity:
            assert self.picture() == before, "decide changed something"
        self.log += [pair for r in decision.records if (pair := machine.encode(r)) is not None]
        for record in decision.records:
            machine.apply(record)
        machine.validate()
        self.effects += decision.effects
        return decision.reply

    def picture(self) -> Any:
        """What the machine holds."""
        machine = self.machine
        return dict(machine.transactions), dict(machine.awaiting), machine.next_deadline_ms()

    def crash(self) -> None:
        """Lose memory and effects; read the log. What is durable must be what was there."""
        before = dict(self.machine.transactions)
        self.machine = TransactionMachine(self.config)
        self.effects.clear()
        for key, value in self.log:
            record = self.machine.decode(key, value)
            assert record is not None
            self.machine.apply(record)
        assert self.machine.transactions == before, "replay and live state differ"
        self.send(LoadedCommand())

    def snapshot(self) -> None:
        """Replace the log by the state."""
        pairs = [self.machine.encode(record) for record in self.machine.state_records()]
        self.log = [pair for pair in pairs if pair is not None]

    def advance(self, ms: int) -> None:
        """Let time pass, waking the machine when it asked for it."""
        end_ms = self.now_ms + ms
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.send(TickCommand())
        self.now_ms = end_ms

    # --- requests, in short ------------------------------------------------------------------

    def init(
        self, name: str = "t", producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000
    ) -> ProducerReply:
        return self.send(InitProducerIdCommand(name, timeout_ms, producer_id, epoch))

    def add(
        self, producer: tuple[int, int], *numbers: int, name: str = "t", version: int = 1
    ) -> Any:
        partitions = frozenset(("topic", number) for number in numbers)
        command = AddPartitionsCommand(name, *producer, partitions, client_version=version)
        return self.send(command).error

    def verify(self, producer: tuple[int, int], *numbers: int, name: str = "t") -> Any:
        partitions = frozenset(("topic", number) for number in numbers)
        return self.send(AddPartitionsCommand(name, *producer, partitions, is_verify_only=True))

    def end(
        self, producer: tuple[int, int], *, commit: bool = True, version: int = 1, name: str = "t"
    ) -> ProducerReply:
        return self.send(EndTransactionCommand(name, *producer, commit, version))

    def written(self, effect: WriteMarkers | None = None, *numbers: int) -> None:
        """Acknowledge an effect (the oldest), whole or some of its partitions."""
        effect = effect or self.effects.pop(0)
        partitions = frozenset(("topic", n) for n in numbers) if numbers else effect.partitions
        self.send(MarkersWrittenCommand(effect.transactional_id, effect.token, partitions))

    def state(self, name: str = "t") -> str:
        """The state of a transactional id, in Kafka's words."""
        record = self.machine.transactions.get(name)
        return "Dead" if record is None else STATE_NAMES[record.state]

    def describe(self, name: str = "t") -> Any:
        return self.send(DescribeTransactionCommand(name))


def producer_of(reply: ProducerReply) -> tuple[int, int]:
    """The id and epoch of a reply that has no error."""
    assert reply.error is None, reply.error
    return reply.producer_id, reply.producer_epoch
