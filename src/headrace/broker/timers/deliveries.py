"""Appends due records to their partition's log, in order and exactly once.

Invariants: one task appends for one partition, so sequences are in order. Before it appends, it
reads which sequences the log already has: those are not appended again, whether they were appended
before a crash, a takeover or a failed append. The topic limits of the time at which a record was
accepted apply: an acknowledged record is delivered even if the topic would refuse it now. A record
that has become unreadable is refused after a minute (log, metric), and an empty batch takes its
sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.timers.timer_bodies import StoredTimer
from headrace.errors import (
    DataCorrupt,
    HeadraceError,
    NotOwner,
    Rejected,
    StorageUnavailable,
    TopicUnknown,
)
from headrace.log.producer_state import SEQUENCE_END
from headrace.records.attributes import DELAY, DELIVER_AT, HALF
from headrace.records.batch import read_header
from headrace.records.bodies import ProducerSequence, decode_body, encode_bodies, encode_body
from headrace.records.compression import LZ4, codec_of_name
from headrace.records.rewriting import empty_batch
from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.timers.timer_bodies import TimerBodies
    from headrace.coordination.timers.commands import Deliver
    from headrace.log.log_config import LogConfig
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock
    from headrace.runtime.completion import Completion
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 256 * 1024
"""Of one batch; a larger record gets a batch of its own."""
CHUNK_RECORDS: Final = 500
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 2.0
REFUSED_AFTER: Final = 30
"""Attempts to read a record, about a minute: the storage may recover."""
REFUSED_LISTED_MAX: Final = 100
LATE_MS: Final = 1_000
"""A record that is later than this gets the time of its delivery, from which retention counts."""
PRODUCER_EPOCH: Final = 0
_HALF: Final = HALF.encode()
_DELAY: Final = DELAY.encode()


class RefusedRecord(NamedTuple):
    """A record that was due and could not be read. `offset`: in the timer log."""

    offset: int
    refused_ms: int
    reason: str


class DeliveryFigures:
    """Figures of all partitions of a broker. `lateness`: in ns, of each record."""

    __slots__ = ("delivered_total", "lateness", "refused_total")

    def __init__(self) -> None:
        self.lateness = Histogram()
        self.delivered_total = 0
        self.refused_total = 0
        """Records that were due and have become unreadable."""


class TimerDeliveries:
    """The deliveries of one partition."""

    def __init__(
        self,
        data: PartitionLog,
        bodies: TimerBodies,
        clock: Clock,
        tasks: Tasks,
        figures: DeliveryFigures,
    ) -> None:
        self._data = data
        self._bodies = bodies
        self._clock = clock
        self._tasks = tasks
        self._figures = figures
        self._queue: deque[tuple[Deliver, Callable[[int], None]]] = deque()
        self._is_running = False
        self._is_closed = False
        self._unread_rounds = 0
        """Consecutive attempts that failed because a record could not be read."""
        self._refused: dict[int, str] = {}
        """Offsets of the records that placeholders replace in this round, with the reason."""
        self.refused: deque[RefusedRecord] = deque(maxlen=REFUSED_LISTED_MAX)
        """The newest ones of this tenure."""
        self._expected: int | None = None
        """The last sequence in the log, unless an append of this round has failed."""

    def add(self, effect: Deliver, done: Callable[[int], None]) -> None:
        """Append the records of `effect`; calls `done(upto)` when they are durable."""
        self._queue.append((effect, done))
        if not self._is_running and not self._is_closed:
            self._is_running = True
            self._tasks.spawn(self._run(), f"{self._data.name} delayed records")

    def close(self) -> None:
        """Stop appending."""
        self._is_closed = True
        self._queue.clear()

    async def _run(self) -> None:
        retry_s = RETRY_S
        try:
            while self._queue and not self._is_closed:
                round_ = list(self._queue)
                try:
                    await self._deliver([effect for effect, _ in round_])
                except (NotOwner, TopicUnknown) as error:
                    log.info(
                        "%s: another broker delivers the delayed records now: %s",
                        self._data.name,
                        error,
                    )
                    self.close()
                    return
                except HeadraceError as error:
                    log.warning(
                        "%s: %d due records wait to be delivered: %s",
                        self._data.name,
                        sum(len(effect.offsets) for effect, _ in self._queue),
                        error,
                    )
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_S_MAX)
                    continue
                retry_s, self._unread_rounds = RETRY_S, 0
                # closed meanwhile: the queue is empty, and another broker owns the state
                if self._is_closed:
                    return
                for _ in round_:
                    self._queue.popleft()
                for effect, done in round_:
                    self._count(effect)
                    self._bodies.forget(effect.offsets)
                    done(effect.first + len(effect.offsets))
        finally:
            self._is_running = False

    def _count(self, effect: Deliver) -> None:
        refused = self._refused.keys() & effect.offsets
        now_ms = self._clock.now_ms()
        for offset in sorted(refused):
            self.refused.append(RefusedRecord(offset, now_ms, self._refused.pop(offset)))
        self._figures.refused_total += len(refused)
        self._figures.delivered_total += len(effect.offsets) - len(refused)

    async def _deliver(self, effects: Sequence[Deliver]) -> None:
        """Append the records of `effects` that the log lacks, and wait until they are durable."""
        completions: list[Completion] = []
        await self._data.wait_loaded()
        self._expected = self._data.producers.last_sequence(effects[0].producer_id)
        for effect in effects:
            done = self._count_there(effect)
            for at in range(done, len(effect.offsets), CHUNK_RECORDS):
                timers = await self._read(effect.offsets[at : at + CHUNK_RECORDS])
                completions += await self._append(effect.producer_id, effect.first + at, timers)
        for completion in completions:
            await completion.wait()
        if not completions:
            await self._data.settled()  # already appended, perhaps a moment ago

    def _count_there(self, effect: Deliver) -> int:
        """How many records of `effect` the log already has."""
        last = self._data.producers.last_sequence(effect.producer_id)
        if last is None:
            return 0
        count = (last - effect.first) % SEQUENCE_END + 1
        return count if count <= len(effect.offsets) else self._count_far(count)

    @staticmethod
    def _count_far(count: int) -> int:
        """For a last sequence outside the effect: none of it is in the log, or all of it."""
        return 0 if count > SEQUENCE_END // 2 else 2**62

    async def _read(self, offsets: Sequence[int]) -> list[StoredTimer | None]:
        """The records at `offsets`, None for those that are refused."""
        try:
            found = await self._bodies.get(offsets)
        except (DataCorrupt, Rejected):
            self._unread_rounds += 1
            if self._unread_rounds < REFUSED_AFTER:
                raise
        else:
            for offset in self._refused.keys() & offsets:
                del self._refused[offset]
            return [found[offset] for offset in offsets]
        return [await self._read_or_refuse(offset) for offset in offsets]

    async def _read_or_refuse(self, offset: int) -> StoredTimer | None:
        try:
            return (await self._bodies.get([offset]))[offset]
        except (DataCorrupt, Rejected) as error:
            self._refused[offset] = str(error)
            log.error(  # noqa: TRY400 - the reason is in the message
                "%s: the delayed record at offset %d of its timer log cannot be read and is "
                "not delivered: %s; later records are delivered; send the record again if it "
                "is needed",
                self._data.name,
                offset,
                error,
            )
            return None

    async def _append(
        self, producer_id: int, first: int, timers: Sequence[StoredTimer | None]
    ) -> list[Completion]:
        completions: list[Completion] = []
        at = 0
        bytes_max = min(BATCH_BYTES, self._data.config.max_message_bytes * 3 // 4)
        while at < len(timers):
            size, together = 0, list[StoredTimer]()
            for timer in timers[at:]:
                if timer is None or (together and size + len(timer.body) > bytes_max):
                    break
                together.append(timer)
                size += len(timer.body)
            if together:
                batch = self._encode(producer_id, first + at, together)
            else:
                batch = _placeholder(producer_id, first + at)
            completions.append(await self._append_batch(batch))
            at += max(len(together), 1)
        return completions

    def _encode(self, producer_id: int, first: int, timers: Sequence[StoredTimer]) -> bytes:
        config = self._data.config
        now_ms = self._clock.now_ms()
        least_ms = max(now_ms - config.timestamp_before_max_ms, 0)
        timed: list[tuple[int, bytes]] = []
        for timer in timers:
            due_ms = timer.due_ms or now_ms
            is_due_now = now_ms - LATE_MS <= due_ms <= now_ms and not config.is_log_append_time
            time_ms = max(due_ms, least_ms) if is_due_now else now_ms
            timed.append((time_ms, _delivered(timer.body, due_ms)))
            self._figures.lateness.add(max(now_ms - due_ms, 0) * 1_000_000)
        producer = ProducerSequence(producer_id, PRODUCER_EPOCH, first % SEQUENCE_END)
        is_append_time, codec = config.is_log_append_time, _codec(config)
        batch = encode_bodies(timed, producer, codec, log_append=is_append_time)
        if len(batch) > config.max_message_bytes and not codec:
            # It was within the limit when it arrived, perhaps compressed.
            batch = encode_bodies(timed, producer, LZ4, log_append=is_append_time)
        return batch

    async def _append_batch(self, batch: bytes) -> Completion:
        header = read_header(batch)
        while True:
            if self._data.producers.last_sequence(header.producer_id) != self._expected:
                # This batch must not be stored without the ones before it.
                raise StorageUnavailable(f"an append to {self._data.name} has failed")
            appended = self._data.append_accepted(batch, header)
            if appended is not None:
                self._expected = self._data.producers.last_sequence(header.producer_id)
                return appended.completion
            ready = self._data.ready
            if ready is None or self._is_closed:
                raise StorageUnavailable(
                    f"{self._data.name} does not accept writes at the moment: try again"
                )
            await ready.wait()


def _placeholder(producer_id: int, first: int) -> bytes:
    """A batch without records that takes the sequence of a refused record."""
    producer = ProducerSequence(producer_id, PRODUCER_EPOCH, first % SEQUENCE_END)
    body = encode_body(None, None, [])
    return empty_batch(read_header(encode_bodies([(0, body)], producer, 0, log_append=False)))


def _delivered(body: bytes, due_ms: int) -> bytes:
    """The body without the headers that would delay the record again if it were sent once more."""
    if _HALF not in body and _DELAY not in body:
        return body
    key, value, headers = decode_body(body)
    kept = [(name, content) for name, content in headers if name not in {HALF, DELAY}]
    names = {name for name, _ in headers}
    if DELAY in names and DELIVER_AT not in names:
        kept.append((DELIVER_AT, b"%d" % due_ms))
    return encode_body(key, value, kept)


def _codec(config: LogConfig) -> int:
    name = "none" if config.compression in {"producer", "uncompressed"} else config.compression
    return codec_of_name(name) or 0
