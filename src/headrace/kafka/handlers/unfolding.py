"""Batches that the broker must open: those that a topic wants in another form, and doubtful ones.

Rules of the room: what a batch unfolds to is bounded, and so is the time that it takes from
everybody else: up to `INLINE_BYTES_MAX` it is done at once, more in a thread, one after the other.
A partition's batches stay in their order: while one is in the thread, those behind it wait for it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace.errors import BatchCorrupt, HeadraceError, RecordInvalid, StorageUnavailable
from headrace.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader, check_batch
from headrace.records.codec import (
    DECOMPRESSED_BYTES_MAX,
    check_count,
    keyless_records,
    log_append_time,
    recompress,
)
from headrace.records.compression import codec_of_name
from headrace.runtime.free_memory import give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.log.log_config import LogConfig
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

    Unfolded = tuple[bytes, BatchHeader]

INLINE_BYTES_MAX = 256 * 1024
"""Unfolded; half a millisecond."""
GIVEN_BACK_BYTES_MIN = 8 * 1024 * 1024
SHOWN_MAX = 3
WAITING_BYTES_MAX = 128 * 1024 * 1024
"""Of all batches that wait for the thread, as they came; the next are told to come again."""


def is_kept(header: BatchHeader, config: LogConfig) -> bool:
    """Whether the topic stores the batch as it came, and nothing about it is doubtful."""
    # Not `is_doubtful`: by name it takes 25 ns longer.
    return config.is_opaque and header[12] <= header[1]


def unfold(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, bytes_max: int
) -> Unfolded:
    """The batch as the topic wants it stored.

    Raises BatchCorrupt, also above `bytes_max`, RecordInvalid, and BatchTooLarge: a small batch may
    unfold to much, which must not wait for its log to be ready.
    """
    batch = bytes(records)
    if header.is_doubtful:
        check_count(batch, decompressed_bytes_max=bytes_max)
    if config.is_compacted and not header.attributes & CONTROL:
        _check_keys(batch, bytes_max)
    name = "none" if config.compression == "uncompressed" else config.compression
    codec = codec_of_name(name)
    if codec is not None and codec != header.attributes & COMPRESSION_MASK:
        batch = recompress(batch, codec, decompressed_bytes_max=bytes_max)
    if config.is_log_append_time:
        batch = log_append_time(batch, now_ms)
    config.check_size(len(batch))
    return batch, check_batch(batch)


def _check_keys(batch: bytes, bytes_max: int) -> None:
    """Raises RecordInvalid, which names the records that have no key."""
    keyless = keyless_records(batch, decompressed_bytes_max=bytes_max)
    if keyless:
        shown = ", ".join(map(str, keyless[:SHOWN_MAX]))
        more = ", ..." if len(keyless) > SHOWN_MAX else ""
        raise RecordInvalid(
            "a topic with cleanup.policy=compact takes no records without a key, and"
            f" {len(keyless)} of this batch have none (index {shown}{more}): nothing of it is"
            " stored; give each record a key",
            record_indexes=keyless,
        )


class Unfolder:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "headrace-unfold")
        self._waiting_bytes = 0
        self.waiting: dict[PartitionLog, int] = {}
        """Partitions with batches in the thread or before it, and how many."""

    def now(
        self, records: memoryview, header: BatchHeader, partition: PartitionLog
    ) -> Unfolded | None:
        """The batch as it is to be stored; None where that takes the thread. Raises as `unfold`.

        None also for what is wrong about it, where that is known only once it is unfolded.
        """
        if partition in self.waiting or len(records) > INLINE_BYTES_MAX:
            return None
        try:
            return unfold(records, header, partition.config, self._clock.now_ms(), INLINE_BYTES_MAX)
        except BatchCorrupt:
            if header.attributes & COMPRESSION_MASK:
                return None  # perhaps it is too large only for here
            raise

    def later(
        self,
        records: memoryview,
        header: BatchHeader,
        partition: PartitionLog,
        then: Callable[[Unfolded | BaseException], None],
    ) -> None:
        """The same in the thread; `then` gets it, or what was raised. Raises StorageUnavailable."""
        size = len(records)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise StorageUnavailable(
                "too many batches wait to be unfolded, this one was not taken: send it again"
            )
        self._waiting_bytes += size
        self.waiting[partition] = self.waiting.get(partition, 0) + 1
        config, now_ms = partition.config, self._clock.now_ms()
        future = asyncio.get_running_loop().run_in_executor(
            self._thread, _outcome, records, header, config, now_ms
        )

        def done(ended: asyncio.Future[Unfolded | BaseException]) -> None:
            self._waiting_bytes -= size
            self.waiting[partition] -= 1
            if not self.waiting[partition]:
                del self.waiting[partition]
            if not ended.cancelled():
                # Whatever it was: a request that nobody answers holds up all behind it for ever.
                fault = ended.exception()
                then(ended.result() if fault is None else fault)

        future.add_done_callback(done)

    def close(self) -> None:
        """Take no more; what waits is dropped, since nobody has been told that it is safe."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _outcome(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int
) -> Unfolded | BaseException:
    if is_kept(header, config):
        return bytes(records), header  # it only waits for those before it
    found: Unfolded | BaseException
    try:
        found = unfold(records, header, config, now_ms, DECOMPRESSED_BYTES_MAX)
    except (HeadraceError, MemoryError) as error:
        # Its traceback would keep all that was unfolded until the collector comes, which is seldom.
        error.__cause__ = error.__context__ = None
        found = error.with_traceback(None)
    if isinstance(found, BaseException) or len(found[0]) > GIVEN_BACK_BYTES_MIN:
        give_back()
    return found
