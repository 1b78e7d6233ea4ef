"""A simulated bookie: a model of its storage, and a server that speaks its protocol.

Invariants: `BookieStore` is pure: entries and fences, which of them are synced, what a power loss
discards. The server acknowledges an add or a fence only once it is synced; a crash discards all or
part of the rest. Frames are BookKeeper's (`storage/bookkeeper/wire.py`); the server decodes as
little as possible, since the client's encoder and decoder are under test. Source: BookKeeper 4.17,
`BookieProtoEncoding`, `BookieImpl.fenceLedger`, `ReadEntryProcessor`.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any

from headrace.storage.bookkeeper.wire import (
    ADD,
    BAD_REQUEST,
    BATCH_READ,
    FENCED,
    FLAG_FENCE,
    FLAG_RECOVERY_ADD,
    IO_ERROR,
    LAST_ADD_CONFIRMED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    READ,
    VERSION,
)

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

    from headrace_verify.simulation.loop import SimulatedLoop

PORT = 3181
SYNC_MIN_S, SYNC_MAX_S = 0.000_3, 0.003
_HEAD = Struct(">I")
_IDS = Struct(">qq")
_RESPONSE = Struct(">IIiqq")
_BATCH_IDS = Struct(">qqqiq")
_KEY_SIZE = 20


class _Ledger:
    __slots__ = ("entries", "is_fenced")

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False


class BookieStore:
    """The state of one bookie: on disk, and in memory until the next sync."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}
        self._durable: dict[int, _Ledger] = {}
        self._unsynced: list[tuple[int, int, bytes]] = []
        """(ledger, entry, bytes) in the journal's order; entry -1: the ledger is fenced."""

    def add(self, ledger: int, entry: int, data: bytes, *, is_recovery: bool) -> int:
        """Return the response code; OK must be delayed until a sync."""
        found = self._ledgers.setdefault(ledger, _Ledger())
        if found.is_fenced and not is_recovery:
            return FENCED
        found.entries[entry] = data
        self._unsynced.append((ledger, entry, data))
        return OK

    def fence(self, ledger: int) -> None:
        """Reject ordinary adds from now on; the response must be delayed until a sync."""
        found = self._ledgers.setdefault(ledger, _Ledger())
        if not found.is_fenced:
            found.is_fenced = True
            self._unsynced.append((ledger, -1, b""))

    def read(self, ledger: int, entry: int) -> tuple[int, bytes]:
        """Return (code, the entry's bytes); `LAST_ADD_CONFIRMED` requests the last entry."""
        found = self._ledgers.get(ledger)
        if found is None:
            return NO_LEDGER, b""
        if entry == LAST_ADD_CONFIRMED:
            entry = max(found.entries, default=-2)
        data = found.entries.get(entry)
        return (NO_ENTRY, b"") if data is None else (OK, data)

    def sync(self, count: int) -> None:
        """Mark the first `count` unsynced writes as synced."""
        for ledger, entry, data in self._unsynced[:count]:
            found = self._durable.setdefault(ledger, _Ledger())
            if entry < 0:
                found.is_fenced = True
            else:
                found.entries[entry] = data
        del self._unsynced[:count]

    @property
    def unsynced_count(self) -> int:
        """The number of writes that a power loss may discard."""
        return len(self._unsynced)

    def crash(self, kept: int) -> None:
        """Discard the unsynced writes except the first `kept`."""
        self.sync(kept)
        self._unsynced.clear()
        self._ledgers = {}
        for ledger, found in self._durable.items():
            copy = self._ledgers[ledger] = _Ledger()
            copy.entries.update(found.entries)
            copy.is_fenced = found.is_fenced


class BookieServer:
    """One life of a bookie's process."""

    def __init__(self, name: str, store: BookieStore, loop: SimulatedLoop, random: Random) -> None:
        self.name = name
        self.store = store
        self.slow_s = 0.0
        """A fault: each sync takes up to this much longer."""
        self._loop = loop
        self._random = random
        self._waiting: list[tuple[Any, bytes]] = []
        self._is_syncing = False

    async def listen(self) -> None:
        """Listen for clients."""
        await self._loop.create_server(lambda: _Client(self), self.name, PORT)

    def request(self, client: _Client, frame: memoryview) -> None:
        """Process one frame."""
        (header,) = _HEAD.unpack_from(frame)
        operation, flags = header >> 16 & 0xFF, header & 0xFFFF
        if operation == ADD:
            at = _HEAD.size + _KEY_SIZE
            ledger, entry = _IDS.unpack_from(frame, at)
            data = bytes(frame[at:])
            is_recovery = bool(flags & FLAG_RECOVERY_ADD)
            code = IO_ERROR
            if not self._loop.fault_points.does("add of a bookie fails"):
                code = self.store.add(ledger, entry, data, is_recovery=is_recovery)
            self._answer(client, _response(ADD, code, ledger, entry), is_synced=code != OK)
        elif operation == READ:
            ledger, entry = _IDS.unpack_from(frame, _HEAD.size)
            is_fencing = bool(flags & FLAG_FENCE)
            if is_fencing:
                self.store.fence(ledger)
            code, data = self.store.read(ledger, entry)
            if not is_fencing and self._loop.fault_points.does("read of a bookie fails"):
                code, data = IO_ERROR, b""
            answer = _response(READ, code, ledger, entry, data)
            self._answer(client, answer, is_synced=not is_fencing)
        elif operation == BATCH_READ:
            ledger, first, request, count, size = _BATCH_IDS.unpack_from(frame, _HEAD.size)
            code, body = self._read_batch(ledger, first, count, size)
            if self._loop.fault_points.does("read of a bookie fails"):
                code, body = IO_ERROR, b""
            data = request.to_bytes(8, "big") + body
            self._answer(client, _response(BATCH_READ, code, ledger, first, data), is_synced=True)
        else:
            self._answer(client, _response(operation, BAD_REQUEST, -1, -1), is_synced=True)

    def _read_batch(self, ledger: int, first: int, count: int, size: int) -> tuple[int, bytes]:
        out = b""
        for entry in range(first, first + max(count, 1)):
            code, data = self.store.read(ledger, entry)
            if code != OK:
                return (OK, out) if out else (code, b"")
            if out and len(out) + len(data) > size:
                break
            if out and self._loop.fault_points.does("batch of a bookie cut short"):
                break
            out += len(data).to_bytes(4, "big") + data
        return OK, out

    def _answer(self, client: _Client, answer: bytes, *, is_synced: bool) -> None:
        if is_synced:
            client.send(answer)
            return
        self._waiting.append((client, answer))
        if not self._is_syncing:
            self._begin_sync()

    def _begin_sync(self) -> None:
        self._is_syncing = True
        random = self._random.random
        delay_s = SYNC_MIN_S + random() * SYNC_MAX_S + random() * self.slow_s
        waiting, self._waiting = self._waiting, []
        self._loop.call_later(delay_s, self._end_sync, self.store.unsynced_count, waiting)

    def _end_sync(self, count: int, waiting: list[tuple[Any, bytes]]) -> None:
        self.store.sync(count)
        for client, answer in waiting:
            client.send(answer)
        self._is_syncing = False
        if self._waiting:
            self._begin_sync()


class _Client(asyncio.Protocol):
    """One client's connection to a bookie."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._transport: Any = None
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None

    def send(self, answer: bytes) -> None:
        """Send, unless the connection is closed."""
        if self._transport is not None:
            self._transport.write(answer)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        data = self._rest + data
        at, view = 0, memoryview(data)
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            self._server.request(self, view[at + 4 : end])
            at = end
        self._rest = data[at:]


def _response(operation: int, code: int, ledger: int, entry: int, body: bytes = b"") -> bytes:
    header = VERSION << 24 | operation << 16
    return _RESPONSE.pack(_RESPONSE.size - 4 + len(body), header, code, ledger, entry) + body
