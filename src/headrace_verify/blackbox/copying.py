"""The behaviour of transactional clients: write or copy, commit, abort, stall, take over.

Invariants: the driver knows an `Instance` and a `Source`, no library. Copies of one input partition
go to two partitions of two topics, in input order. A copier starts at its group's committed offset
once no commit is pending, and copies again what was not committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace_verify.blackbox.context import now_ns
from headrace_verify.blackbox.routing import RETRY_S
from headrace_verify.blackbox.transactional import Failed, Transaction
from headrace_verify.history import INIT, OK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.blackbox.context import Context
    from headrace_verify.blackbox.transactional import Instance, Offsets

COMMITS, ABORTS, DROPS, EXPIRES = "commits", "aborts", "drops", "expires"
"""How a transaction ends; dropped: left open until the next instance; expired: left to time out."""
TAKEOVER, REPLACED = "takeover", "replaced"
"""Another instance begins during it, or just before; the old one requests a commit anyway."""
_FIRST = (COMMITS, ABORTS, TAKEOVER, REPLACED)
"""For a client's first transactions, so that short runs cover all of them."""
_FATES = {
    COMMITS: 0.84,
    ABORTS: 0.12,
    DROPS: 0.015,
    EXPIRES: 0.003,
    TAKEOVER: 0.012,
    REPLACED: 0.01,
}
EXPIRY_GRACE_S = 1.5
"""A coordinator checks for expired transactions once a second."""
SLOW_SHARE, SLOW_S = 0.06, 0.6
"""The fraction of transactions that stall before they end, and for how long."""
WORKS_SHARE = 0.5
"""The fraction of new instances that work before the old one commits."""
BATCH_RECORDS = 3
IDLE_S = 0.02


class Polled(NamedTuple):
    """A record to copy."""

    topic: str
    part: int
    offset: int


class Source(Protocol):
    """A copier's input."""

    def restart(self) -> None:
        """The group's committed offset is unknown: look it up before the next poll."""
        ...

    def poll(self) -> Sequence[Polled]:
        """Return the next records; the same again until `done`, while the copier owns them."""
        ...

    @property
    def metadata(self) -> Any:
        """The client's group metadata for sending offsets."""
        ...

    @property
    def identity(self) -> tuple[str, int]:
        """Member and generation of the last poll."""
        ...

    def done(self) -> None:
        """The polled records are committed."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class Driver:
    """Runs transactions sequentially, in successive instances."""

    def __init__(
        self, context: Context, make: Callable[[str], Instance], source: Source | None = None
    ) -> None:
        """`make` creates an instance for a transactional id; without a source, orders are
        written."""
        self._context = context
        self._make = make
        self._source = source
        self._id = context.spec.name.partition("~")[0]
        self._instance: Instance | None = None
        self._lives = self._count = 0
        self._whose: dict[str, str] = {}

    def run(self) -> None:
        """Run until the end of the run."""
        context = self._context
        while not context.over.is_set():
            if self._instance is None:
                self._begin_life()
            elif self._work(self._instance):
                context.pause(1 / max(1, context.spec.rate_per_s))
            else:
                context.pause(IDLE_S)
        if self._source is not None:
            self._source.close()
        if self._instance is not None:
            self._instance.close()

    def _begin_life(self) -> Instance | None:
        """Create an instance, which fences earlier users of the id; None if that failed."""
        self._lives += 1
        whose = {"id": self._id, "instance": f"{self._context.spec.name}/{self._lives}"}
        instance = self._make(self._id)
        since_ns = now_ns()
        try:
            instance.init()
        except Failed as error:
            self._context.note("no producer", error=str(error))
            instance.close()
            self._context.pause(RETRY_S)
            return None
        self._context.history.write(OK, INIT, since=since_ns, **whose)
        self._instance, self._whose = instance, whose
        if self._source is not None:
            self._source.restart()
        return instance

    def _work(self, instance: Instance) -> bool:
        """Run one transaction, if there is input."""
        records = self._source.poll() if self._source is not None else self._new_orders()
        if records:
            self._transact(instance, records)
        return bool(records)

    def _new_orders(self) -> Sequence[Polled]:
        context = self._context
        count = context.rng.choice((1, 1, 2, 3, 5))
        return [Polled(*context.rng.choice(context.places), -1) for _ in range(count)]

    def _transact(self, instance: Instance, records: Sequence[Polled]) -> None:
        """One transaction."""
        self._count += 1
        name = f"{self._context.spec.name}.{self._count}"
        transaction: Transaction | None = None
        fate, whose = self._draw(), self._whose
        if fate == REPLACED:
            self._succeed()
        try:
            transaction = Transaction(self._context, instance, name, whose)
            instance.begin()
            self._send(transaction, records)
            self._end(instance, transaction, fate)
        except Failed as error:
            self._context.note("transaction failed", txn=name, error=str(error))
            may_abort = error.may_abort and fate != REPLACED
            self._go_on(instance, transaction, may_abort=may_abort)

    def _go_on(
        self, instance: Instance, transaction: Transaction | None, *, may_abort: bool
    ) -> None:
        """After an error: abort, or create a new instance."""
        if self._source is not None:
            self._source.restart()
        try:
            if transaction is not None and may_abort:
                transaction.abort()
                return
        except Failed as error:
            self._context.note("abort failed", error=str(error))
        if transaction is not None:
            transaction.leave()
        self._drop(instance)

    def _drop(self, instance: Instance) -> None:
        instance.close()
        if self._instance is instance:
            self._instance = None

    def _draw(self) -> str:
        if self._count <= len(_FIRST):
            return _FIRST[self._count - 1]
        (fate,) = self._context.rng.choices(list(_FATES), list(_FATES.values()))
        return fate

    def _send(self, transaction: Transaction, records: Sequence[Polled]) -> None:
        source, spec = self._source, self._context.spec
        if source is None:
            for topic, part, _ in records:
                transaction.send(topic, part)
            return
        offsets: Offsets = {}
        for record in records:
            for at, (topic, count) in enumerate(spec.options["targets"].items()):
                transaction.send(topic, (record.part + at) % count, of=record)
            offsets[record.topic, record.part] = record.offset + 1
        assert spec.group is not None
        transaction.send_offsets(spec.group, offsets, source.metadata, source.identity)

    def _end(self, instance: Instance, transaction: Transaction, fate: str) -> None:
        """Raises Failed."""
        if self._context.rng.random() < SLOW_SHARE:
            instance.flush()
            self._context.pause(SLOW_S)
        match fate:
            case "commits":
                self._commit(transaction)
            case "aborts":
                if self._context.rng.random() < 0.7:
                    instance.flush()  # so that there is something to abort
                transaction.abort()
            case "drops":
                instance.flush()
                transaction.leave()
                self._drop(instance)
            case "expires":
                instance.flush()
                self._context.pause(instance.timeout_s + EXPIRY_GRACE_S)
                self._commit(transaction)
            case "takeover":
                instance.flush()
                successor = self._succeed()
                if successor is not None and self._context.rng.random() < WORKS_SHARE:
                    self._work(successor)
                self._commit_fenced(instance, transaction)
            case _:
                self._commit_fenced(instance, transaction)

    def _commit(self, transaction: Transaction) -> None:
        transaction.commit()
        if self._source is not None:
            self._source.done()

    def _succeed(self) -> Instance | None:
        """Start another instance of the same id; None at the end of the run."""
        self._instance = None
        successor = self._begin_life()
        while successor is None and not self._context.over.is_set():
            successor = self._begin_life()
        return successor

    def _commit_fenced(self, former: Instance, transaction: Transaction) -> None:
        """Request a commit from a fenced instance."""
        try:
            transaction.commit()
            self._context.note("zombie committed", txn=transaction.name)
        except Failed as error:
            self._context.note("fenced", txn=transaction.name, error=str(error))
            transaction.leave()
        former.close()
        if self._source is not None:
            self._source.restart()
