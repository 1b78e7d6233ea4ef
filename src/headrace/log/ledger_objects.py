"""Reads sealed ledgers from object storage without a broker.

Responsibilities: opens the object of a ledger, or the recipe that has replaced it, and returns its
batches in order. Knows no partition: a caller is told by its owner which ledgers there are.

Invariants: what was told is believed only as far as the object says the same: offsets in its
footer, leader epoch and offsets in its batches. Bytes are verified by the object's checksums, as a
broker does. At most `PIECES_AHEAD` + 1 pieces of `PIECE_BYTES`, or of one batch, are in memory. For
programs without an event loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from headrace.errors import BatchCorrupt, DataCorrupt, HeadraceError, StorageUnavailable
from headrace.log.footer import LedgerContents, decode_contents
from headrace.records.batch import iterate_headers
from headrace.records.cluster_ids import is_id_of, split_prefix
from headrace.runtime.tasks import Tasks
from headrace.storage.ledger import LedgerId
from headrace.storage.tiering.blob_store import BlobStore
from headrace.storage.tiering.ledger_blob import LedgerBlob
from headrace.storage.tiering.object_format import object_name
from headrace.storage.tiering.recipe_format import recipe_name
from headrace.storage.tiering.recipe_ledger import RebuiltRuns, RecipeLedger
from headrace.storage.tiering.remote_ledger import RemoteLedger
from headrace.storage.tiering.tier import TierCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from headrace.records.batch import BatchHeader

PIECE_BYTES: Final = 2 << 20
PIECES_AHEAD: Final = 2

_T = TypeVar("_T")


class LedgerPlace(NamedTuple):
    """A sealed ledger in object storage, as its partition's owner describes it."""

    prefix: str
    """What the names of the cluster's objects begin with."""
    ledger: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    size_bytes: int
    is_tabled: bool
    """Whether a recipe has replaced its object."""


class Piece(NamedTuple):
    """Consecutive batches."""

    data: bytes
    batches: list[tuple[int, BatchHeader]]
    """(position in `data`, header) of each."""
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of each aborted transaction among them."""


class LedgerObjects:
    """The ledgers of one store. Closed by `with`."""

    def __init__(self, url: str) -> None:
        """Sends no request. Raises RequestInvalid for another kind of URL."""
        self._blobs = BlobStore.open(url)
        self._counters = TierCounters()
        self._runs = RebuiltRuns()
        self._runner = asyncio.Runner()
        self.shown = self._blobs.shown
        """The URL for display; contains no secrets."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runs.close()
        self._runner.close()

    def exists(self, place: LedgerPlace) -> bool:
        """Whether there is an object of this ledger, or a recipe. Raises StorageUnavailable."""
        for name in _names(place):
            try:
                self._run(self._blobs.size(name))
            except StorageUnavailable as error:
                if not error.fields.get("is_missing"):
                    raise
            else:
                return True
        return False

    def found(self, place: LedgerPlace) -> LedgerPlace | None:
        """Where a ledger is that brokers describe to a client of a tenant, which sees another
        cluster id than objects are named by; None if it is nowhere. Raises StorageUnavailable."""
        if self.exists(place):
            return place
        shown, worker = split_prefix(place.prefix)
        for prefix in self._run(self._blobs.folders()):
            cluster_id, of = split_prefix(prefix)
            other = place._replace(prefix=prefix)
            if of == worker and is_id_of(cluster_id, shown) and self.exists(other):
                return other
        return None

    def open(self, place: LedgerPlace) -> OpenedLedger:
        """Raises StorageUnavailable (`is_missing`: it has been deleted), DataCorrupt if it is not
        the ledger that was described, FormatUnsupported."""
        source = self._run(self._opened(place))
        footer = self._run(source.read_footer())
        if footer is None:
            raise DataCorrupt(f"ledger {place.ledger} was sealed without a footer")
        contents = decode_contents(footer)
        starts = contents.offset_index.offsets
        if contents.end_offset != place.end_offset or (
            len(starts) and starts[0] != place.base_offset
        ):
            raise _other(place, f"it ends at offset {contents.end_offset}")
        return OpenedLedger(place, source, contents, self._run)

    async def _opened(self, place: LedgerPlace) -> RemoteLedger | RecipeLedger:
        """The object, or the recipe that has replaced it since it was listed."""
        missing: StorageUnavailable | None = None
        for name in _names(place):
            blob = LedgerBlob(LedgerId(place.ledger), self._blobs, name, self._counters)
            source = (
                RecipeLedger(blob, place.size_bytes, self._runs)
                if name.endswith(recipe_name(place.ledger))
                else RemoteLedger(blob, place.size_bytes)
            )
            try:
                await source.open()
            except StorageUnavailable as error:
                if not error.fields.get("is_missing"):
                    raise
                missing = missing or error
            else:
                return source
        assert missing is not None
        raise missing

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(call)


def _names(place: LedgerPlace) -> list[str]:
    names = [recipe_name(place.ledger)]
    if not place.is_tabled:
        names.insert(0, object_name(place.ledger))
    return [f"{place.prefix}/{name}" for name in names]


class OpenedLedger:
    """One ledger. Not read by two iterators at a time."""

    def __init__(
        self,
        place: LedgerPlace,
        source: RemoteLedger | RecipeLedger,
        contents: LedgerContents,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._place = place
        self._source = source
        self._contents = contents
        self._run = run
        self._tasks = Tasks()
        self._ahead: deque[asyncio.Task[memoryview | HeadraceError]] = deque()

    @property
    def committed_end(self) -> int:
        """The offset before which the outcome of each transaction is known from this ledger."""
        first_open, end = self._contents.first_open_offset, self._place.end_offset
        return end if first_open is None else min(first_open, end)

    def pieces(self, start: int, end: int, *, is_read_committed: bool) -> Iterator[Piece]:
        """The batches with offsets from `start` to before `end`, which the ledger has.

        `is_read_committed`: `aborted` is looked up, up to `committed_end`. Raises
        StorageUnavailable, DataCorrupt.
        """
        index, step = self._contents.offset_index, self._source.block_bytes
        position = index.position_before(start)
        limit_at = bisect_left(index.offsets, end)
        limit = index.positions[limit_at] if limit_at < len(index.positions) else self._source.size
        least = self._place.base_offset if position == 0 else index.offset_at(position)
        skip, rest = position % step, b""
        try:
            for data in self._read(position // step, -(-limit // step)):
                rest = b"".join((rest, data[skip:]))
                skip = 0
                found = self._whole(rest, end, least)
                if not found:
                    continue
                at, last = found[-1]
                least, taken = last.last_offset + 1, at + last.size
                wanted = [one for one in found if one[1].last_offset >= start]
                if wanted:
                    yield Piece(rest, wanted, self._aborted(wanted, is_read_committed))
                if least >= end:
                    return
                rest = rest[taken:]
        finally:
            self._settle()
        if not self._contents.is_compacted or end == self._place.end_offset:
            raise self._corrupt(f"it ends at offset {least}, before {end}")

    def _whole(self, data: bytes, end: int, least: int | None) -> list[tuple[int, BatchHeader]]:
        """The complete batches in `data` up to `end`, of which the first begins at `least`."""
        found: list[tuple[int, BatchHeader]] = []
        place, is_dense = self._place, not self._contents.is_compacted
        try:
            for at, header in iterate_headers(data):
                first = header.base_offset
                if first >= end:
                    break
                is_next = first == least if is_dense else first >= (least or 0)
                if not is_next or not place.base_offset <= first <= header.last_offset:
                    raise self._corrupt(f"a batch begins at offset {first} instead of {least}")
                if header.last_offset >= place.end_offset:
                    raise self._corrupt(f"a batch ends at offset {header.last_offset}")
                if header.leader_epoch != place.leader_epoch:
                    raise _other(place, f"its leader epoch is {header.leader_epoch}")
                least = header.last_offset + 1
                found.append((at, header))
        except BatchCorrupt as error:
            raise self._corrupt(str(error)) from error
        return found

    def _aborted(
        self, batches: list[tuple[int, BatchHeader]], is_read_committed: bool
    ) -> list[tuple[int, int]]:
        index = self._contents.aborted
        if index is None or not is_read_committed:
            return []
        found = index.find(batches[0][1].base_offset, batches[-1][1].last_offset + 1)
        return [(producer_id, first) for first, producer_id in found]

    def _read(self, block: int, end: int) -> Iterator[memoryview]:
        """The blocks from `block` to before `end`, the next of which are asked for meanwhile."""
        count = max(1, PIECE_BYTES // self._source.block_bytes)

        async def next_piece() -> memoryview | HeadraceError:
            nonlocal block
            while block < end and len(self._ahead) <= PIECES_AHEAD:
                reading = self._piece(block, min(count, end - block))
                self._ahead.append(self._tasks.start(reading, "reading a ledger"))
                block += count
            return await self._ahead.popleft()

        while block < end or self._ahead:
            data = self._run(next_piece())
            if isinstance(data, HeadraceError):
                raise data
            yield data

    async def _piece(self, block: int, count: int) -> memoryview | HeadraceError:
        try:
            return await self._source.read_blocks(block, count)
        except HeadraceError as error:
            return error  # nobody may wait for it

    def _settle(self) -> None:
        """Wait for what was asked for: a request that is abandoned is answered later, which stops
        a process that is just ending."""
        while self._ahead:
            task = self._ahead.popleft()
            with suppress(HeadraceError):
                self._run(_ended(task))

    def _corrupt(self, problem: str) -> DataCorrupt:
        return _other(self._place, problem)


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


def _other(place: LedgerPlace, problem: str) -> DataCorrupt:
    return DataCorrupt(
        f"the object of ledger {place.ledger} is not what its partition's owner describes, offsets"
        f" {place.base_offset} to {place.end_offset - 1} of leader epoch {place.leader_epoch}"
        f" ({problem})",
        ledger=place.ledger,
    )
