"""Producers, partitions and a coordinator that may crash, and what a reader sees in the end.

A plain model: partitions follow the rules of a partition's log (epochs, markers), producers are
honest but clumsy: they repeat requests, stop, start again, and those of version 2 send late ones.
The coordinator is the real machine. Values of a transaction are either all read or none, as its
producer was told.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.unit.coordination.machine_rig import TransactionHarness

from headrace.coordination.transactions.commands import (
    MarkersWrittenCommand,
    ProducerReply,
    WriteMarkers,
)
from headrace.errors import ConcurrentTransactions

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a", "b")
PARTITIONS = 3
TIMEOUT_MS = 1_000
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
EPOCH_START = 32_760
"""Half of the histories begin near the last epoch."""


class Violation(AssertionError):
    """What must always hold did not."""


class PartitionModel:
    """One partition: per producer id the newest epoch and the open values."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.committed: list[int] = []
        self.aborted: set[int] = set()

    def write(self, producer: tuple[int, int], value: int) -> bool:
        """Take a value into the producer's transaction; False: its epoch has passed."""
        producer_id, epoch = producer
        known = self.epochs.get(producer_id, -1)
        if epoch < known:
            return False
        self.epochs[producer_id] = epoch
        self.open.setdefault(producer_id, []).append(value)
        return True

    def end(self, marker: WriteMarkers) -> None:
        """A marker, perhaps for the second time."""
        known = self.epochs.get(marker.producer_id, -1)
        values = self.open.get(marker.producer_id, [])
        if marker.producer_epoch < known:
            return
        if marker.transaction_version >= 2 and marker.producer_epoch == known and not values:
            return
        self.epochs[marker.producer_id] = marker.producer_epoch
        self.open.pop(marker.producer_id, None)
        if marker.is_commit:
            self.committed += values
        else:
            self.aborted.update(values)


@dataclass
class Client:
    """One instance of a producer."""

    name: str
    version: int
    producer: tuple[int, int] | None = None
    values: list[int] = field(default_factory=list)
    added: set[int] = field(default_factory=set)
    ending: bool | None = None
    """What it asked for and got no answer to."""
    is_dead: bool = False


class TransactionHistory:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = TransactionHarness(check_purity=seed % 16 == 0)
        self.partitions = [PartitionModel() for _ in range(PARTITIONS)]
        self.clients: list[Client] = []
        self.transactions: list[tuple[list[int], str]] = []
        self.inits: set[tuple[int, int]] = set()
        self.pending: list[WriteMarkers] = []
        self.late: list[Callable[[], object]] = []
        self.next_value = 0
        if seed % 2:
            for name in NAMES:
                self.rig.init(name)
                record = self.rig.machine.transactions[name]
                record = record._replace(producer_epoch=EPOCH_START + seed % 7)
                self.rig.machine.apply(record)
                pair = self.rig.machine.encode(record)
                assert pair is not None
                self.rig.log.append(pair)

    def run(self, steps: int) -> None:
        """Do `steps` random things, then let everything end, and judge."""
        actions = (
            (self.start_client, 2),
            (self.write, 10),
            (self.end, 6),
            (self.deliver_marker, 8),
            (self.send_late, 2),
            (self.crash, 1),
            (self.wait, 1),
            (self.snapshot, 1),
        )
        chosen = self.rng.choices(
            [action for action, _ in actions], [weight for _, weight in actions], k=steps
        )
        for action in chosen:
            action()
            self.pending += self.rig.effects
            self.rig.effects.clear()
        self.settle()
        self.judge()

    # --- what may happen ---------------------------------------------------------------------

    def start_client(self) -> None:
        """A producer starts; what ran before under its name may go on as a zombie."""
        client = Client(self.rng.choice(NAMES), self.rng.choice((1, 2)))
        self.clients.append(client)
        self.init(client)

    def init(self, client: Client) -> None:
        reply = self.rig.init(client.name, timeout_ms=TIMEOUT_MS)
        if reply.error is not None:
            return
        client.producer = reply.producer_id, reply.producer_epoch
        if client.producer in self.inits:
            raise Violation(f"two producers were given {client.producer}")
        self.inits.add(client.producer)

    def client(self) -> Client | None:
        living = [client for client in self.clients if not client.is_dead]
        client = self.rng.choice(living) if living else None
        if client is not None and client.producer is None:
            self.init(client)
            return None
        return client

    def write(self) -> None:
        """Add a partition if need be, and write a value to it."""
        client = self.client()
        if client is None or client.ending is not None:
            return
        assert client.producer is not None
        number = self.rng.randrange(PARTITIONS)
        if client.version == 2 or number not in client.added:
            error = self.rig.add(client.producer, number, name=client.name, version=client.version)
            if isinstance(error, ConcurrentTransactions):
                return
            if error is not None:
                self.die(client)
                return
            client.added.add(number)
        if client.version == 1:
            found = self.rig.verify(client.producer, number, name=client.name)
            if found.error is not None or found.absent:
                self.die(client)
                return
        value = self.next_value
        self.next_value += 1
        if self.partitions[number].write(client.producer, value):
            client.values.append(value)
        else:
            self.die(client)

    def end(self) -> None:
        """Commit or abort; the answer may be lost, then the client asks again."""
        client = self.client()
        if client is None or not (client.values or client.version == 2):
            return
        assert client.producer is not None
        commit = self.rng.random() < 0.6 if client.ending is None else client.ending
        if not client.values:
            commit = False
        client.ending = commit
        producer, version, name = client.producer, client.version, client.name
        reply = self.rig.end(producer, commit=commit, version=version, name=name)
        if version == 2:
            self.late.append(
                lambda: self.rig.end(producer, commit=commit, version=version, name=name)
            )
        if self.rng.random() < 0.3 or isinstance(reply.error, ConcurrentTransactions):
            return  # lost, or to be asked again
        self.ended(client, reply, commit=commit)

    def ended(self, client: Client, reply: ProducerReply, *, commit: bool) -> None:
        if reply.error is not None:
            self.die(client)
            return
        self.transactions.append((client.values, COMMITTED if commit else ABORTED))
        client.values, client.added, client.ending = [], set(), None
        if client.version == 2:
            client.producer = reply.producer_id, reply.producer_epoch

    def die(self, client: Client) -> None:
        client.is_dead = True
        self.transactions.append((client.values, UNKNOWN))

    def deliver_marker(self) -> None:
        """One marker of an effect arrives; its acknowledgement, or both, may be lost."""
        if not self.pending:
            return
        effect = self.rng.choice(self.pending)
        _, number = partition = self.rng.choice(sorted(effect.partitions))
        self.partitions[number].end(effect)
        if self.rng.random() < 0.2:
            return
        done = MarkersWrittenCommand(effect.transactional_id, effect.token, frozenset({partition}))
        self.rig.send(done)
        record = self.rig.machine.awaiting.get(effect.transactional_id)
        if record is None or record[0] != effect.token:
            self.pending.remove(effect)
            # Its senders may still be at work: an acknowledgement comes late.
            self.late.append(lambda: self.rig.send(done))

    def send_late(self) -> None:
        """A request that was delayed in the network arrives."""
        if self.late:
            self.late.pop(self.rng.randrange(len(self.late)))()

    def crash(self) -> None:
        """The coordinator moves; effects are asked for again, acknowledgements of old ones not."""
        self.rig.crash()
        self.pending.clear()
        self.late.clear()

    def wait(self) -> None:
        self.rig.advance(self.rng.choice((100, TIMEOUT_MS)))

    def snapshot(self) -> None:
        self.rig.snapshot()

    # --- the end -----------------------------------------------------------------------------

    def settle(self) -> None:
        """No client does anything any more; time passes, and all markers arrive."""
        for _ in range(3):
            self.rig.advance(TIMEOUT_MS)
            self.rig.crash()
            for effect in self.rig.effects:
                for _, number in sorted(effect.partitions):
                    self.partitions[number].end(effect)
                self.rig.send(
                    MarkersWrittenCommand(effect.transactional_id, effect.token, effect.partitions)
                )
            self.rig.effects.clear()

    def judge(self) -> None:
        """Raises Violation unless every transaction is whole and has the outcome that its producer
        got."""
        for client in self.clients:
            if not client.is_dead and client.values:
                self.transactions.append((client.values, UNKNOWN))
        read = Counter(value for partition in self.partitions for value in partition.committed)
        for name, record in self.rig.machine.transactions.items():
            if self.rig.state(name) not in {"Empty", "CompleteCommit", "CompleteAbort"}:
                raise Violation(f"{name} stays in {record}")
        for number, partition in enumerate(self.partitions):
            if any(partition.open.values()):
                raise Violation(f"a transaction stays open in partition {number}")
        if any(count > 1 for count in read.values()):
            raise Violation("a value was committed twice")
        for values, told in self.transactions:
            seen = sum(value in read for value in values)
            if told == COMMITTED and seen != len(values):
                raise Violation(f"committed: {values}, and {seen} of them are read")
            if told == ABORTED and seen:
                raise Violation(f"aborted: {values}, and {seen} of them are read")
            if seen not in (0, len(values)):
                raise Violation(f"torn: {values}, and {seen} of them are read")
