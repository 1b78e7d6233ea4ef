"""Delivers transaction markers to their partitions, on this broker and others, until each is
written.

Invariants: performs the effects of transaction coordinators. A marker is retried until it is
durable, its topic or partition was deleted (according to the metadata store, not this broker's
cached view), or a newer coordinator is active. Markers for another broker are batched, with one
request in flight; failed ones wait with increasing backoff and look up the partition's leader
again. Writing a marker twice does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from headrace.broker.coordinators.peer_calls import MarkerRequest, PeerCalls
from headrace.broker.topics.ownership import NO_LEADER
from headrace.coordination.kit.machine import EndsTransaction
from headrace.coordination.transactions.commands import MarkersWrittenCommand, WriteMarkers
from headrace.errors import (
    BrokerUnreachable,
    HeadraceError,
    ProducerFenced,
    TopicUnknown,
    TransactionCoordinatorFenced,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.marker_writer import MarkerWriter
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.transactions.state_records import Partition
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BATCH_PARTITIONS_MAX = 1_000
"""Per request: about 30 KB, so that one transaction over many partitions does not delay all
others."""
RETRY_MS_MIN = 20
RETRY_MS_MAX = 1_000
LOGGED_ATTEMPTS = 10
"""From this attempt on, an undelivered marker is logged."""


class _Job:
    """One effect in progress."""

    __slots__ = ("__weakref__", "effect", "is_void", "marker", "report")

    def __init__(
        self,
        effect: WriteMarkers,
        coordinator_epoch: int,
        report: Callable[[MarkersWrittenCommand], None],
    ) -> None:
        self.effect = effect
        self.marker = EndsTransaction(
            effect.producer_id,
            effect.producer_epoch,
            coordinator_epoch,
            effect.is_commit,
            effect.transaction_version,
        )
        self.report = report
        self.is_void = False
        """A newer coordinator, or a later job of this one, writes the markers."""

    def written(self, partitions: list[Partition]) -> None:
        """Report to the machine."""
        self.report(
            MarkersWrittenCommand(
                self.effect.transactional_id, self.effect.token, frozenset(partitions)
            )
        )


class _Item(NamedTuple):
    job: _Job
    partition: Partition
    attempts: int


class MarkerSender:
    """See the module."""

    def __init__(
        self,
        broker_id: int,
        topics: Topics,
        ownership: Ownership,
        writer: MarkerWriter,
        tasks: Tasks,
        peers: PeerCalls | None = None,
    ) -> None:
        """`peers`: None on a broker that serves every partition itself."""
        self.peers = peers
        self._broker_id = broker_id
        self._topics = topics
        self._ownership = ownership
        self._writer = writer
        self._tasks = tasks
        self._queues: dict[int, deque[_Item]] = {}
        """By broker; each queue present has a task that empties it."""
        self._newest: WeakValueDictionary[str, _Job] = WeakValueDictionary()
        """By transactional id. A coordinator that was reloaded requests outstanding markers again:
        the rest of its earlier request must not end the producer's next transaction."""
        self.waiting_count = 0

    def send(
        self,
        effect: WriteMarkers,
        coordinator_epoch: int,
        report: Callable[[MarkersWrittenCommand], None],
    ) -> None:
        """Start writing the markers of a transaction; `report` is called later, possibly several
        times."""
        job = _Job(effect, coordinator_epoch, report)
        former = self._newest.get(effect.transactional_id)
        if former is not None:
            former.is_void = True
        self._newest[effect.transactional_id] = job
        if not effect.partitions:
            asyncio.get_running_loop().call_soon(job.written, [])
            return
        self.waiting_count += len(effect.partitions)
        self._route([_Item(job, partition, 0) for partition in sorted(effect.partitions)])

    # --- routing -----------------------------------------------------------------------------

    def _route(self, items: list[_Item]) -> None:
        """Queue each item for its partition's leader; those without a leader wait."""
        lost: list[_Item] = []
        for item in items:
            name, number = item.partition
            topic = self._topics.by_name.get(name)
            if topic is None or number >= len(topic.partitions):
                lost.append(item)
                continue
            broker = self._ownership.leader(topic, number).broker
            if broker == NO_LEADER:
                lost.append(item)
                continue
            queue = self._queues.get(broker)
            if queue is None:
                queue = self._queues[broker] = deque()
                self._tasks.spawn(self._serve(broker, queue), f"markers for broker {broker}")
            queue.append(item)
        if lost:
            self._tasks.spawn(self._find(lost), "markers without a leader")

    async def _find(self, items: list[_Item]) -> None:
        """Wait and try again; deleted partitions need no marker."""
        attempts = max(item.attempts for item in items)
        if attempts == LOGGED_ATTEMPTS:
            log.warning(
                "cannot deliver the transaction marker of producer %d to %s-%d: still retrying",
                items[0].job.effect.producer_id,
                *items[0].partition,
            )
        await asyncio.sleep(min(RETRY_MS_MIN << min(attempts, 10), RETRY_MS_MAX) / 1000)
        known: list[_Item] = []
        deleted: list[_Item] = []
        unsure: set[str] = set()
        for name in sorted({item.partition[0] for item in items}):
            topic = self._topics.by_name.get(name)
            wanted = max(i.partition[1] for i in items if i.partition[0] == name)
            if topic is None or wanted >= len(topic.partitions):
                try:
                    await self._topics.refresh(name)
                except HeadraceError as error:
                    log.info(
                        "cannot look up topic %s; its transaction markers wait: %s", name, error
                    )
                    unsure.add(name)
        for item in items:
            name, number = item.partition
            topic = self._topics.by_name.get(name)
            is_known = topic is not None and number < len(topic.partitions)
            if is_known or name in unsure:
                known.append(item._replace(attempts=item.attempts + 1))
            else:
                deleted.append(item)
        self._finish(deleted)
        self._route([item for item in known if not self._is_void(item)])

    # --- sending -----------------------------------------------------------------------------

    async def _serve(self, broker: int, queue: deque[_Item]) -> None:
        """Send what is queued for one broker, one request at a time."""
        try:
            while queue:
                items: list[_Item] = []
                while queue and len(items) < BATCH_PARTITIONS_MAX:
                    item = queue.popleft()
                    if not self._is_void(item):
                        items.append(item)
                if items and broker == self._broker_id:
                    self._tasks.spawn(self._send(broker, items), "markers for this broker")
                elif items:
                    await self._send(broker, items)
        finally:
            del self._queues[broker]

    async def _send(self, broker: int, items: list[_Item]) -> None:
        by_job: dict[_Job, list[_Item]] = {}
        for item in items:
            by_job.setdefault(item.job, []).append(item)
        requests = [
            MarkerRequest(job.marker, [item.partition for item in group])
            for job, group in by_job.items()
        ]
        outcomes: list[dict[Partition, HeadraceError | None]]
        try:
            if broker == self._broker_id:
                outcomes = await asyncio.gather(
                    *(self._writer.write(*request) for request in requests)
                )
            else:
                outcomes = await self._call(broker, requests)
        except BrokerUnreachable as error:
            outcomes = [dict.fromkeys(request.partitions, error) for request in requests]
        except Exception:
            # Whatever the error: a lost marker leaves its transaction open for ever.
            log.exception("internal error while sending transaction markers to broker %d", broker)
            unsent = BrokerUnreachable("the markers could not be sent: they are retried")
            outcomes = [dict.fromkeys(request.partitions, unsent) for request in requests]
        again: list[_Item] = []
        for (job, group), outcome in zip(by_job.items(), outcomes, strict=True):
            again += self._settle(job, group, outcome)
        if again:
            self._tasks.spawn(self._find(again), "retry markers")

    async def _call(
        self, broker: int, requests: list[MarkerRequest]
    ) -> list[dict[Partition, HeadraceError | None]]:
        fact: BrokerFact | None = next(
            (fact for fact in self._ownership.brokers() if fact.id == broker), None
        )
        if fact is None or self.peers is None:
            raise BrokerUnreachable(f"broker {broker} is not registered now")
        return await self.peers.write_markers(fact, requests)

    def _settle(
        self, job: _Job, items: list[_Item], outcome: dict[Partition, HeadraceError | None]
    ) -> list[_Item]:
        """Report markers that are written; return those to retry."""
        done: list[_Item] = []
        again: list[_Item] = []
        for item in items:
            error = outcome.get(item.partition, TopicUnknown("the response lacks this partition"))
            if isinstance(error, TransactionCoordinatorFenced):
                job.is_void = True
                log.info("a newer coordinator has taken over this one's transactions: %s", error)
            if error is None:
                done.append(item)
            elif isinstance(error, ProducerFenced):
                # The partition knows a newer epoch: nothing of this transaction is open there.
                log.info("%s-%d needs no marker: %s", *item.partition, error)
                done.append(item)
            else:
                again.append(item)
        self._finish(done)
        return [item for item in again if not self._is_void(item)]

    def _finish(self, items: list[_Item]) -> None:
        by_job: dict[_Job, list[Partition]] = {}
        for item in items:
            by_job.setdefault(item.job, []).append(item.partition)
        self.waiting_count -= len(items)
        for job, partitions in by_job.items():
            job.written(partitions)

    def _is_void(self, item: _Item) -> bool:
        if item.job.is_void:
            self.waiting_count -= 1
            return True
        return False
