"""Turns appends into entries: appends are buffered until an entry is sent.

Invariants: positions, buffers and sizes; `writing_ledger` decides when entries are sent. Appended
bytes are copied once: into the frame that every bookie gets and that the cache keeps.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.runtime.completion import Completion
from headrace.storage.bookkeeper.entries import DATA, FRAGMENT, HEAD, MAGIC, VERSION
from headrace.storage.bookkeeper.wire import PAYLOAD_AT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.storage.ledger import Buffer

DATA_AT: Final = PAYLOAD_AT + HEAD.size
"""The position of the ledger's bytes in an entry's frame."""
_EMPTY: Final = bytearray()
_HEAD_SPACE: Final = bytes(DATA_AT)


class BuiltEntry:
    """An entry with its head filled in; the completion is that of the appends ending in it."""

    __slots__ = ("completion", "end", "frame", "kind", "position")

    def __init__(
        self, frame: bytearray, position: int, start: int, kind: int, completion: Completion | None
    ) -> None:
        self.frame = frame
        self.position = position
        self.kind = kind
        self.end = position + len(frame) - DATA_AT
        self.completion = completion
        HEAD.pack_into(frame, PAYLOAD_AT, MAGIC, VERSION, kind, position, start)


class EntryBuilder:
    """See the module."""

    def __init__(self, entry_bytes_max: int, entry_bytes_target: int) -> None:
        self.end = 0
        """The end of the appended bytes."""
        self.queue: deque[BuiltEntry] = deque()
        """Entries to be sent."""
        self._room = entry_bytes_max - HEAD.size
        self._target = min(entry_bytes_target, self._room)
        self._parts: list[Buffer] = []
        """Appended in this turn."""
        self._frame: bytearray | None = None
        """Buffered from earlier turns."""
        self._size = 0
        self._position = 0
        self._completion: Completion | None = None

    @property
    def is_gathering(self) -> bool:
        """Whether there are bytes that are not in an entry yet."""
        return self._completion is not None

    def append(self, parts: Sequence[Buffer], size: int) -> tuple[int, Completion]:
        """(position, completion) of an append."""
        position = self.end
        self.end += size
        if self._size + size > self._room:
            self.flush()
            if size > self._room:
                return position, self._split(parts, position)
        completion = self._completion
        if completion is None:
            completion = self._completion = Completion()
            self._position = position
        self._parts += parts
        self._size += size
        if self._size >= self._target:
            self.flush()
        return position, completion

    def _split(self, parts: Sequence[Buffer], start: int) -> Completion:
        """Split an append that is larger than an entry; its last entry completes it."""
        data = memoryview(b"".join(parts))
        completion = Completion()
        for at in range(0, len(data), self._room):
            is_last = at + self._room >= len(data)
            frame = _EMPTY.join((_HEAD_SPACE, data[at : at + self._room]))
            kind = DATA if is_last else FRAGMENT
            done = completion if is_last else None
            self.queue.append(BuiltEntry(frame, start + at, start, kind, done))
        return completion

    def end_turn(self) -> None:
        """Copy the buffers of this turn, which the caller may reuse afterwards."""
        if self._frame is None:
            self._frame = _EMPTY.join((_HEAD_SPACE, *self._parts))
        else:
            for part in self._parts:
                self._frame += part
        self._parts = []

    def flush(self) -> None:
        """Turn the buffered bytes into an entry."""
        completion, self._completion = self._completion, None
        if completion is None:
            return
        self.end_turn()
        frame, self._frame, self._size = self._frame, None, 0
        assert frame is not None
        self.queue.append(BuiltEntry(frame, self._position, self._position, DATA, completion))

    def add_beside(self, payloads: list[bytes]) -> None:
        """Queue the entries of an inline checkpoint or a trailer, after everything appended."""
        for payload in payloads:
            frame = _EMPTY.join((bytes(PAYLOAD_AT), payload))
            kind = payload[len(MAGIC) + 1]
            self.queue.append(BuiltEntry(frame, self.end, self.end, kind, None))

    def drop(self) -> list[Completion]:
        """Discard everything unsent; returns its completions."""
        dropped = [entry.completion for entry in self.queue if entry.completion is not None]
        if self._completion is not None:
            dropped.append(self._completion)
        self.queue.clear()
        self._completion, self._frame, self._parts, self._size = None, None, [], 0
        return dropped
