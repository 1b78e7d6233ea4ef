"""Opens batches that are stored in another form, or whose queue attributes take effect.

Invariants: one pass over a batch's decompressed records collects everything that is needed. The
decompressed size of a batch is bounded, and so is the time it takes from other requests: up to
`INLINE_BYTES_MAX` the work is done at once, beyond that in a thread, one batch after the other, in
turns of tenants and their users. A batch whose records all go to the log now keeps its bytes; only
a batch that is split is re-encoded.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.broker.coordinators.delays import BatchOrigin, DelayedBatch, DelayedRecord
from headrace.errors import (
    BatchCorrupt,
    BatchExpandsTooFar,
    BatchTooLarge,
    HeadraceError,
    RecordInvalid,
)
from headrace.log.appended import DELAYED, DUPLICATE, NO_OFFSET, STORED, RecordPlace
from headrace.log.appended import HALF as HALF_MESSAGE
from headrace.records.attributes import (
    HALF,
    MESSAGE_ID,
    check_unread_batch,
    find_header,
    lite_topics_of,
    scan_records,
)
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    NAMED,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
    read_header,
)
from headrace.records.bodies import encode_body
from headrace.records.codec import (
    DECOMPRESSED_BYTES_MAX,
    Record,
    compress_batch,
    decode_batch,
    encode_batch,
    iterate_payload,
    keyless_records,
    log_append_time,
    mark_named,
    payload_of,
    retain_records,
    with_max_timestamp,
)
from headrace.records.compression import codec_of_name
from headrace.records.rewriting import empty_batch
from headrace.records.validation import (
    INLINE_BYTES_MAX,
    INLINE_COMPRESSED_MAX,
    INLINE_RECORDS_MAX,
    validate_records,
)
from headrace.runtime.free_memory import trim_heap
from headrace.runtime.loop_turns import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.log.log_config import LogConfig
    from headrace.log.named_sequences import NamedSequences
    from headrace.records.attributes import NamedSequence, RecordAttributes
    from headrace.records.validation import RecordFacts
    from headrace.runtime.clock import Clock
    from headrace.runtime.loop_turns import Path

DELAYED_BYTES_MAX: Final = 60 * 1024 * 1024
"""For the delayed records of one batch: a timer log stores them in one batch of at most 64 MiB."""
DELAYED_OVERHEAD_BYTES: Final = 100
"""Per record in a timer log, besides its bytes."""
SPLIT_RECORDS_MAX: Final = 10_000
"""Of a batch whose records become objects, because some are delayed, half messages, or of named
sequences or lite topics: a megabyte can hold a million, of 400 bytes each in memory, and the event
loop takes 10 us to delay one. librdkafka's batches have no more by default, and Java's producer
divides one that is refused as too large."""
DISTINCT_RECORDS_MAX: Final = 256
"""Of a batch that is encoded again without its duplicates on the event loop: 3 ms."""
_STORED_TWICE: Final = (HALF, MESSAGE_ID)
GIVEN_BACK_BYTES_MIN: Final = 8 * 1024 * 1024
SHOWN_MAX: Final = 3


Named: TypeAlias = "Sequence[tuple[int, NamedSequence]]"
"""(index in the batch, sequence) of the records that belong to named sequences."""


class AdmittedBatch(NamedTuple):
    """A batch as it will be stored."""

    batch: bytes | memoryview
    header: BatchHeader | None
    """None if no record is left for the log."""
    delayed: DelayedBatch | None = None
    named: Named = ()
    has_unread_attributes: bool = False
    """Whether the batch was opened, has reserved headers, and its topic does not read them."""
    lite: Sequence[tuple[int, str]] = ()
    """(index in the batch, lite topic), in a topic of lite topics."""


def is_kept(header: BatchHeader, config: LogConfig) -> bool:
    """Whether the topic stores the batch as received, on its header's word."""
    # Not `is_doubtful`: access by name takes 25 ns longer.
    return config.is_opaque and not config.is_validated and header[12] <= header[1]


def admit(
    records: memoryview,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    bytes_max: int,
    named: Named = (),
) -> AdmittedBatch:
    """The batch as the topic stores it, and the records that do not go to the log now.

    `named`: the named sequences of a batch of the broker's own, whose other attributes are ignored;
    its records carry the same in their headers.

    Raises BatchExpandsTooFar, RecordInvalid, and BatchTooLarge: a small batch may
    decompress to a large one, which must not wait for its log to be ready, or to many records.
    """
    batch: bytes | memoryview = records
    name = "none" if config.compression == "uncompressed" else config.compression
    codec = codec_of_name(name)
    own_codec = header.attributes & COMPRESSION_MASK
    has_keys = config.is_compacted and not header.attributes & CONTROL
    is_recompressed = codec is not None and codec != own_codec
    is_unread = False
    has_attributes = config.has_attributes and not named
    lite: Sequence[tuple[int, str]] = ()
    is_opened = config.is_validated or header.is_doubtful or config.lite_topics_max
    if not (is_opened or has_keys or is_recompressed or has_attributes):
        config.check_oldest(header.first_timestamp_ms, now_ms)
    else:
        payload, facts = _open(batch, header, bytes_max)
        config.check_oldest(facts.oldest_ms, now_ms)
        if facts.newest_ms != header.max_timestamp_ms:
            header = header._replace(max_timestamp_ms=facts.newest_ms)
            batch = with_max_timestamp(batch, facts.newest_ms)
        if has_keys and facts.keyless_count:
            _check_keys(payload, header)
        if config.lite_topics_max and facts.has_reserved and not named:
            lite = _lite_topics(payload, header)
        if not has_attributes:
            is_unread = facts.has_reserved and not named
            if is_unread and config.refuses_attributes:
                check_unread_batch(payload, header, now_ms)
        elif found := scan_records(payload, header, now_ms):
            later, named = _attributes(found, header, now_ms)
            if later or named:
                _check_split(header)
            if later:
                rest = _split(bytes(batch), header, later, config, now_ms, codec, bytes_max)
                return rest._replace(lite=lite)
        if codec is not None and is_recompressed:
            batch = compress_batch(header, payload, codec)
    if config.is_log_append_time:
        batch = log_append_time(batch, now_ms)
    if named:
        batch = mark_named(batch)
    if batch is records:  # it was checked by itself
        return AdmittedBatch(records, header, None, named, is_unread, lite)
    config.check_size(len(batch))
    return AdmittedBatch(batch, check_batch(batch), None, named, is_unread, lite)


def _open(
    batch: bytes | memoryview, header: BatchHeader, bytes_max: int
) -> tuple[bytes, RecordFacts]:
    """The decompressed records of a batch, and what they say.

    Raises RecordInvalid if they cannot be decoded, BatchExpandsTooFar above `bytes_max`.
    """
    try:
        payload = payload_of(batch, header, bytes_max)
        return payload, validate_records(payload, header.record_count, header.first_timestamp_ms)
    except BatchExpandsTooFar:
        raise
    except BatchCorrupt as error:
        # The CRC matches: the producer made it so, and sending it again would not help.
        reason = f"consumers could not decode the batch, so it is not stored: {error}"
        raise RecordInvalid(reason) from None


def _check_keys(payload: bytes, header: BatchHeader) -> None:
    """Raise RecordInvalid, naming the records that have no key."""
    keyless = keyless_records(payload, header)
    if keyless:
        shown = ", ".join(map(str, keyless[:SHOWN_MAX]))
        more = ", ..." if len(keyless) > SHOWN_MAX else ""
        raise RecordInvalid(
            "a topic with cleanup.policy=compact requires a key on each record, and "
            f"{len(keyless)} records of this batch have none (index {shown}{more}): the "
            "batch is not stored; give each record a key",
            record_errors=[(index, "it has no key") for index in keyless],
        )


def _attributes(
    found: Sequence[RecordAttributes], header: BatchHeader, now_ms: int
) -> tuple[dict[int, int], Named]:
    """(index -> due time of the records that are not due yet, named records). Raises RecordInvalid.

    Half messages are not due before they are committed. In an idempotent producer's batch, records
    that are already due are included as well: if they were not due when the batch first arrived,
    they are already stored as delayed records and must not be appended to the log, too.
    """
    is_repeatable = header.producer_id != NO_PRODUCER_ID
    is_transactional = bool(header.attributes & TRANSACTIONAL)
    later: dict[int, int] = {}
    for item in found:
        if item.is_half:
            later[item.batch_index] = item.due_ms or 0
        elif item.due_ms is not None and (
            item.due_ms > now_ms or (is_repeatable and not is_transactional)
        ):
            later[item.batch_index] = item.due_ms
    if later and is_transactional:
        raise _refused(
            min(later),
            "a transactional record can be neither delayed nor a half message: send it "
            "without a transaction",
        )
    named = [(item.batch_index, item.named) for item in found if item.named is not None]
    if named and (later or header.attributes & TRANSACTIONAL):
        # An aborted record would count as appended; a delayed one would be out of order.
        raise _refused(
            named[0][0],
            "a named sequence (headrace-producer) cannot be combined with a transaction "
            "or with delayed records in the same batch: send it without them",
        )
    return later, named


def _lite_topics(payload: bytes, header: BatchHeader) -> Sequence[tuple[int, str]]:
    found = lite_topics_of(payload, header)
    if found:
        _check_split(header)
    return found


def _check_split(header: BatchHeader) -> None:
    """Raise BatchTooLarge above SPLIT_RECORDS_MAX."""
    if header.record_count > SPLIT_RECORDS_MAX:
        raise BatchTooLarge(
            f"the batch has {header.record_count} records, and one with delayed records, half "
            f"messages, named sequences or lite topics may have {SPLIT_RECORDS_MAX}: the batch is "
            "not stored; send smaller batches",
            limit=SPLIT_RECORDS_MAX,
            actual=header.record_count,
        )


def _refused(index: int, reason: str) -> RecordInvalid:
    return RecordInvalid(
        f"record {index} of the batch: {reason}; the batch is not stored",
        record_errors=[(index, reason)],
    )


def _split(
    batch: bytes,
    header: BatchHeader,
    later: dict[int, int],
    config: LogConfig,
    now_ms: int,
    codec: int | None,
    bytes_max: int,
) -> AdmittedBatch:
    """Split the delayed records of a batch from those that go to the log now."""
    records = decode_batch(batch, decompressed_bytes_max=bytes_max)
    config.check_size(header.size)  # its decompressed records are kept until they are due
    origin = None
    if header.producer_id != NO_PRODUCER_ID:
        origin = BatchOrigin(header.producer_id, header.producer_epoch, header.base_sequence)
    delayed = DelayedBatch(
        [DelayedRecord(due_ms, index, records[index]) for index, due_ms in later.items()], origin
    )
    _check_delayed_size(delayed)
    kept = [record for index, record in enumerate(records) if index not in later]
    rest = without_records(header, kept, codec)
    if rest is None:
        return AdmittedBatch(b"", None, delayed)
    if config.is_log_append_time:
        rest = log_append_time(rest, now_ms)
    config.check_size(len(rest))
    return AdmittedBatch(rest, read_header(rest), delayed)


def _check_delayed_size(delayed: DelayedBatch) -> None:
    size = 0
    for _, _, record in delayed.records:
        headers = record.headers
        size += len(encode_body(record.key, record.value, headers)) + DELAYED_OVERHEAD_BYTES
        # A half message is stored with its group and id besides the body.
        size += sum(len(content or b"") for name, content in headers if name in _STORED_TWICE)
    if size > DELAYED_BYTES_MAX:
        raise BatchTooLarge(
            f"the delayed records of the batch take {size} bytes, more than "
            f"{DELAYED_BYTES_MAX}: the batch is not stored; send smaller batches",
            limit=DELAYED_BYTES_MAX,
            actual=size,
        )


def without_records(header: BatchHeader, kept: Sequence[Record], codec: int | None) -> bytes | None:
    """The batch of `header` with only the records in `kept`; None if nothing is to be stored.

    A batch of an idempotent producer keeps its range of offsets and sequences, even without any
    record, so that the next batch follows it; there are gaps between the offsets of its records, as
    after compaction.
    """
    if codec is None:
        codec = header.attributes & COMPRESSION_MASK
    if header.producer_id == NO_PRODUCER_ID:
        return encode_batch(kept, codec=codec) if kept else None
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    header = header._replace(attributes=attributes)
    return retain_records(header, kept) if kept else empty_batch(header)


class Duplicates(NamedTuple):
    """What of an admitted batch its named sequences already have."""

    new: Sequence[NamedSequence]
    """The named sequences of the other records."""
    offset: int
    """Up to which they are stored, -1 without any."""
    indexes: Mapping[int, None]
    """In the batch."""


def duplicates_in(admitted: AdmittedBatch, sequences: NamedSequences) -> Duplicates:
    """The records that do not advance their named sequences."""
    new: list[NamedSequence] = []
    duplicates: dict[int, None] = {}
    highest: dict[str, int] = {}
    offset = -1
    for index, one in admitted.named:
        found = sequences.find(one)
        if found is not None:
            offset = max(offset, found)
        if found is not None or one.sequence <= highest.get(one.producer, -1):
            duplicates[index] = None
            continue
        highest[one.producer] = one.sequence
        new.append(one)
    return Duplicates(new, offset, duplicates)


def distinct_now(admitted: AdmittedBatch, found: Duplicates) -> AdmittedBatch | None:
    """The batch without its duplicates; None if that takes the thread."""
    header = admitted.header
    assert header is not None, "named sequences and delayed records do not share a batch"
    if not found.indexes:
        return admitted
    if len(found.indexes) < header.record_count and (
        header.record_count > DISTINCT_RECORDS_MAX or header.size > INLINE_COMPRESSED_MAX
    ):
        return None
    try:
        return distinct(admitted, found, INLINE_BYTES_MAX)
    except BatchExpandsTooFar:
        return None


def distinct(
    admitted: AdmittedBatch, found: Duplicates, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> AdmittedBatch:
    """The same, however long it takes. Raises BatchExpandsTooFar."""
    header, kept = admitted.header, list[Record]()
    assert header is not None
    if len(found.indexes) < header.record_count:
        index = 0
        # In parts, as compiled code lets no other thread run.
        for records in iterate_payload(payload_of(admitted.batch, header, bytes_max), header):
            kept += [one for at, one in enumerate(records, index) if at not in found.indexes]
            index += len(records)
    rest = without_records(header._replace(attributes=header.attributes & ~NAMED), kept, None)
    if rest is None:
        return AdmittedBatch(b"", None)
    if found.new:
        rest = mark_named(rest)
    return AdmittedBatch(rest, read_header(rest))


def places_of(
    header: BatchHeader,
    admitted: AdmittedBatch,
    duplicates: Collection[int],
    base_offset: int,
    timers: Sequence[int] = (),
) -> list[RecordPlace]:
    """What became of each record of a batch of which not all went to the log; `header`: as it was
    sent; `timers`: the numbers under which the delayed ones are kept, if they are known."""
    removed = {index: RecordPlace(NO_OFFSET, DUPLICATE) for index in duplicates}
    delayed = () if admitted.delayed is None else admitted.delayed.records
    for at, (due_ms, index, record) in enumerate(delayed):
        timer = timers[at] if timers else -1
        is_half = find_header(record.headers, HALF) is not None
        state = HALF_MESSAGE if is_half else DELAYED
        removed[index] = RecordPlace(NO_OFFSET, state, due_ms, timer)
    # A batch of an idempotent producer keeps its range of offsets, others become denser.
    is_range_kept = header.producer_id != NO_PRODUCER_ID
    found: list[RecordPlace] = []
    offset = base_offset
    for index in range(header.record_count):
        place = removed.get(index)
        found.append(RecordPlace(offset, STORED) if place is None else place)
        offset += place is None or is_range_kept
    return found


class BatchAdmission:
    """Runs `admit`, in a thread if it takes long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "headrace-admission")
        self._waiting = FairQueue()
        self._is_busy = self._is_closed = False

    def now(
        self, records: memoryview, header: BatchHeader, config: LogConfig, named: Named
    ) -> AdmittedBatch | None:
        """The batch as it will be stored; None if that requires the thread. Raises as `admit`.

        Also None for errors that only decompression reveals.
        """
        is_plain = config.is_opaque and not header.attributes & COMPRESSION_MASK
        if header.record_count > INLINE_RECORDS_MAX or (
            len(records) > INLINE_BYTES_MAX and not is_plain
        ):
            return None
        bytes_max = max(INLINE_BYTES_MAX, len(records))
        try:
            return admit(records, header, config, self._clock.now_ms(), bytes_max, named)
        except BatchCorrupt:
            if header.attributes & COMPRESSION_MASK:
                return None  # it may be too large only for the inline path
            raise

    def opening(
        self, records: memoryview, header: BatchHeader, config: LogConfig, named: Named
    ) -> Callable[[], AdmittedBatch | BaseException]:
        """The same for the thread, however long it takes: what returns the result or the error."""
        return partial(_outcome, records, header, config, self._clock.now_ms(), named)

    def run(
        self,
        path: Path,
        work: Callable[[], AdmittedBatch | BaseException],
        then: Callable[[AdmittedBatch | BaseException], None],
    ) -> None:
        """Do `work` in the thread, in turns of those in `path`; `then` gets what it returns or
        raises."""
        opening = _Opening(work, then)
        if self._is_busy:
            self._waiting.add(path, opening)
        else:
            self._start(opening)

    def _start(self, opening: _Opening) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._thread, opening.work)
        self._is_busy = True

        def done(ended: asyncio.Future[AdmittedBatch | BaseException]) -> None:
            self._is_busy = False
            if self._waiting and not self._is_closed:
                self._start(self._waiting.pop())
            if not ended.cancelled():
                # Whatever the error: an unanswered request blocks all later ones.
                fault = ended.exception()
                opening.then(ended.result() if fault is None else fault)

        future.add_done_callback(done)

    def close(self) -> None:
        """Accept no more; waiting batches are dropped, since none was acknowledged."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Opening(NamedTuple):
    work: Callable[[], AdmittedBatch | BaseException]
    then: Callable[[AdmittedBatch | BaseException], None]


def _outcome(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, named: Named
) -> AdmittedBatch | BaseException:
    found: AdmittedBatch | BaseException
    try:
        found = admit(records, header, config, now_ms, DECOMPRESSED_BYTES_MAX, named)
    except (HeadraceError, MemoryError) as error:
        # Its traceback would keep the decompressed bytes until the next garbage collection.
        error.__cause__ = error.__context__ = None
        found = error.with_traceback(None)
    if isinstance(found, BaseException) or len(found.batch) > GIVEN_BACK_BYTES_MIN:
        trim_heap()
    return found
