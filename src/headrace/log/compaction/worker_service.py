"""The compaction process's side of `workers`: answers its requests.

Invariants: serves one round. Opens the ledger files that the broker names for reading, and verifies
them as the broker does; writes only answers.
"""

from __future__ import annotations

import json
import os
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from headrace.errors import BatchCorrupt, DataCorrupt
from headrace.log.compaction.rounds import BatchRun, map_run, rewrite_run, whole_of
from headrace.log.compaction.workers import (
    CORRUPT,
    DAMAGED,
    DONE,
    DROPPED,
    END_MAP,
    JOB,
    MAP,
    MAP_FILE,
    MISSING,
    NOTHING,
    OPEN,
    REWRITE,
    UNCHANGED,
    UNREADABLE,
    Job,
    RoundState,
)
from headrace.log.sealed_runs import SealedRuns, decode_segment
from headrace.runtime.memory_file import write_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.log.compaction.rounds import Compaction, KeyMap, Steps
    from headrace.records.batch import Buffer

_T = TypeVar("_T")

FILE_READ_BYTES: Final = 1 << 20
MAP_BYTES: Final = 4 << 20
"""Bytes of a file per answer: about 20 ms of work."""
LEFT_BYTES: Final = 1 << 20
_HALF: Final = 1 << 32
"""Where the second half of the in-memory file begins; the gap between takes no memory."""


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    first: int
    second: int
    parts: list[Buffer]


class RoundServer:
    """Serves the requests of one round."""

    def __init__(self) -> None:
        self._round: RoundState | None = None
        self._file: _LedgerFile | None = None
        self._left = -1
        self._half = 0

    def answer(self, operation: int, first: int, second: int, body: bytes) -> Answer:
        """Execute a request. Corrupt data and I/O errors are answers; other errors are raised."""
        if operation == JOB:
            aborted, *rest = json.loads(body)
            self._round = RoundState(Job([(one, first, end) for one, first, end in aborted], *rest))
            return Answer(DONE, 0, 0, [])
        assert self._round is not None
        try:
            if operation == MAP:
                steps = map_run(self._round.keys, BatchRun.of(body), first)
                return Answer(DONE, int(_outcome(steps)), 0, [])
            if operation == END_MAP:
                ended = self._round.end_map(None if first == NOTHING else first)
                return Answer(DONE, *ended, [])
            if operation == REWRITE:
                return self._rewrite(self._round.compaction, BatchRun.of(body), first, second)
            return self._answer_of_file(self._round, operation, (first, second), body)
        except BatchCorrupt as error:
            return Answer(CORRUPT, 0, 0, [str(error).encode()])
        except DataCorrupt as error:
            return Answer(DAMAGED, 0, 0, [str(error).encode()])
        except FileNotFoundError:
            return Answer(MISSING, 0, 0, [])
        except OSError as error:
            return Answer(UNREADABLE, 0, 0, [str(error).encode()])

    def _answer_of_file(
        self, round_: RoundState, operation: int, numbers: tuple[int, int], body: bytes
    ) -> Answer:
        if operation == OPEN:
            self.close()
            self._left, self._file = numbers[0], _LedgerFile(body)
            return Answer(DONE, 0, 0, [])
        assert self._file is not None
        if operation == MAP_FILE:
            return self._map_file(self._file, round_.keys, numbers[0])
        return self._rewrite_file(self._file, round_.compaction, *numbers)

    def close(self) -> None:
        """Close the ledger's file, if one is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @staticmethod
    def _map_file(file: _LedgerFile, keys: KeyMap, from_offset: int) -> Answer:
        begin, is_full = file.runs.position, False
        for run in file.pieces():
            is_full = _outcome(map_run(keys, run, from_offset))
            if is_full or file.runs.position - begin >= MAP_BYTES:
                break
        return Answer(DONE, int(is_full), file.runs.position - begin, [])

    def _rewrite_file(
        self, file: _LedgerFile, compaction: Compaction, base_offset: int, end_offset: int
    ) -> Answer:
        begin = file.runs.position
        self._half = _HALF - self._half
        size = removed = 0
        is_changed = False
        markers: list[int] = []
        for run in file.pieces():
            left = _outcome(rewrite_run(compaction, run, base_offset, end_offset))
            batches, are_changed = whole_of(run, left)
            size += write_parts(self._left, batches, self._half + size)
            is_changed = is_changed or are_changed
            removed += left.removed_records
            markers += left.dropped_markers
            if size >= LEFT_BYTES or file.runs.position - begin >= MAP_BYTES:
                break
        numbers = array("q", [self._half, size, is_changed, *markers])
        return Answer(DONE, removed, file.runs.position - begin, [numbers.tobytes()])

    @staticmethod
    def _rewrite(
        compaction: Compaction, run: BatchRun, base_offset: int, end_offset: int
    ) -> Answer:
        left = _outcome(rewrite_run(compaction, run, base_offset, end_offset))
        sizes = array("q")
        parts: list[Buffer] = []
        for (at, header), batch in zip(run.batches, left.batches, strict=True):
            if batch is None:
                sizes.append(DROPPED)
            elif len(batch) == header.size and batch == memoryview(run.data)[at : at + header.size]:
                sizes.append(UNCHANGED)
            else:
                sizes.append(len(batch))
                parts.append(batch)
        sizes.extend(left.dropped_markers)
        return Answer(
            DONE, left.removed_records, len(left.dropped_markers), [sizes.tobytes(), *parts]
        )


class _LedgerFile:
    """A ledger that the process reads from its file."""

    def __init__(self, body: bytes) -> None:
        """Raises OSError."""
        segment, path = decode_segment(body)
        self.runs = SealedRuns(segment, segment.end_position, FILE_READ_BYTES)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pieces(self) -> Iterator[BatchRun]:
        """The next runs. Raises OSError, DataCorrupt, BatchCorrupt."""
        while size := self.runs.size:
            run = self.runs.take(os.pread(self._descriptor, size, self.runs.position))
            if run is not None:
                yield run

    def close(self) -> None:
        os.close(self._descriptor)


def _outcome(steps: Steps[_T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("_T", done.value)
