"""A partition's producers as bytes for the footer of a ledger, in slices.

Invariants: knows values and bytes; what is encoded does not change meanwhile (see
`ProducerState.snapshot`). Whatever looks at all producers yields after each SLICE of them, so that
the event loop can have turns in between. The layout is in `docs/FORMAT.md`. Do not change: stored.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from headrace.log.producer_state import Producer

DUPLICATES_KEPT: Final = 5
"""An idempotent Java producer has at most five requests in flight. Do not change."""
NO_COORDINATOR_EPOCH: Final = -1
SLICE = 2_000  # not Final: tests lower it, also in the compiled core
"""Producers that are looked at without a pause, when all are."""
COARSE_MS: Final = 8_192
_OPEN_MS: Final = 2**62
"""Is added to when producers with open transactions were last seen: they are dropped last."""
COUNT: Final = Struct(">I")
PRODUCER: Final = Struct(">qhqB")
BATCH: Final = Struct(">iiqq")
_WITH_BATCHES: Final = [
    Struct(PRODUCER.format + BATCH.format[1:] * count) for count in range(DUPLICATES_KEPT + 1)
]
"""A producer and so many batches: at once, since there may be many producers."""
OPEN: Final = Struct(">qq")
COORDINATOR: Final = Struct(">qi")


def slices(ids: Iterable[int]) -> Iterator[list[int]]:
    """All of these ids, SLICE at a time; they may change meanwhile."""
    known = iter(list(ids))
    while some := list(islice(known, SLICE)):
        yield some


def find_idle(
    ids: Iterable[int], count: int, end_ms: int, seen: Callable[[int], int]
) -> Generator[None, None, tuple[int, int, int]]:
    """(first, end, left): the `count` longest idle ones of those seen before `end_ms` are those
    seen before `first`, and `left` of those seen then or later, before `end`. `seen`: when one was,
    negative if it does not count.

    Sorting a million takes a second, so they are found by counting, to some seconds and then
    exactly.
    """
    first_ms, left = 0, count
    for step_ms in (COARSE_MS, 1):
        counts: Counter[int] = Counter()
        for some in slices(ids):
            for producer_id in some:
                seen_ms = seen(producer_id)
                if first_ms <= seen_ms < end_ms:
                    counts[seen_ms // step_ms] += 1
            yield
        for part in sorted(counts):
            if left < counts[part]:
                first_ms, end_ms = part * step_ms, min((part + 1) * step_ms, end_ms)
                break
            left -= counts[part]
        else:  # all of these
            return end_ms, end_ms, 0
    return first_ms, end_ms, left


def encode_producers(
    producers: Mapping[int, Producer], open_offsets: Mapping[int, int], bytes_max: int
) -> Generator[None, None, bytes]:
    """Sequences and epochs.

    Decoding assumes that a producer without batches starts at 0, so others are omitted. If the
    result would exceed `bytes_max`, the longest idle producers are dropped, as if expired, those
    with an open transaction last.
    """

    def shown_ms(producer_id: int) -> int:
        producer = producers[producer_id]
        if not producer.batches and producer.first_sequence:
            return -1
        return producer.seen_ms + (_OPEN_MS if producer_id in open_offsets else 0)

    room = max(bytes_max - COUNT.size, 0) // _WITH_BATCHES[-1].size
    first_ms = end_ms = left = 0
    if len(producers) > room:
        count = 0
        for some in slices(producers):
            count += sum(shown_ms(producer_id) >= 0 for producer_id in some)
            yield
        if count > room:
            idle = find_idle(producers, count - room, 2 * _OPEN_MS, shown_ms)
            first_ms, end_ms, left = yield from idle
    encoded, total = [b""], 0
    for some in slices(producers):
        parts: list[bytes] = []
        for producer_id in some:
            producer = producers[producer_id]
            batches = producer.batches[-DUPLICATES_KEPT:]
            if not batches and producer.first_sequence:
                continue
            if end_ms and (seen_ms := shown_ms(producer_id)) < end_ms:
                if seen_ms < first_ms:
                    continue
                if left:
                    left -= 1
                    continue
            kept, values = len(batches), chain.from_iterable(batches)
            head = producer_id, producer.epoch, producer.seen_ms, kept
            parts.append(_WITH_BATCHES[kept].pack(*head, *values))
        encoded.append(b"".join(parts))
        total += len(parts)
        yield
    encoded[0] = COUNT.pack(total)
    return b"".join(encoded)


def encode_pairs(layout: Struct, pairs: Iterable[tuple[int, int]]) -> Generator[None, None, bytes]:
    """(producer id, number) of each; empty if there are none."""
    entries: list[bytes] = []
    found = iter(pairs)
    while some := list(islice(found, SLICE)):
        entries += [layout.pack(producer_id, number) for producer_id, number in some]
        yield
    return COUNT.pack(len(entries)) + b"".join(entries) if entries else b""


def encode_coordinators(producers: Mapping[int, Producer]) -> Generator[None, None, bytes]:
    """The coordinator epochs; empty: no producer has completed a transaction."""
    pairs: list[tuple[int, int]] = []
    for some in slices(producers):
        for producer_id in some:
            epoch = producers[producer_id].coordinator_epoch
            if epoch != NO_COORDINATOR_EPOCH:
                pairs.append((producer_id, epoch))
        yield
    return (yield from encode_pairs(COORDINATOR, pairs))
