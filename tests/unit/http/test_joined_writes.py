"""What is written in one turn of the loop leaves in its order, two writes at a time."""

from __future__ import annotations

import asyncio

from headrace.http.joined_writes import JOIN_BYTES_MAX, JoinedWrites


class Wire(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_over = False

    def write(self, data) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data) -> None:
        self.sent += [bytes(data) for data in list_of_data]

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


def run(test):
    async def scenario() -> list[bytes]:
        wire = Wire()
        await test(wire, JoinedWrites(wire, asyncio.get_running_loop()))
        return wire.sent

    return asyncio.run(scenario())


def test_a_write_leaves_with_the_next_one_or_at_the_end_of_the_turn():
    async def test(wire, joined):
        joined.write(b"head ")
        joined.write(b"")
        assert wire.sent == []
        joined.write(b"body")
        assert wire.sent == [b"head body"]
        joined.write(b"next")
        await asyncio.sleep(0)

    assert run(test) == [b"head body", b"next"]


def test_large_writes_are_not_joined_by_copying():
    large = bytes(JOIN_BYTES_MAX)

    async def test(_wire, joined):
        joined.write(b"head")
        joined.write(large)
        joined.write(b"end")
        await asyncio.sleep(0)

    assert run(test) == [b"head", large, b"end"]


def test_writes_before_a_close_are_sent():
    async def test(wire, joined):
        joined.write(b"last")
        joined.close()
        assert wire.is_over

    assert run(test) == [b"last"]


def test_writes_before_an_abort_are_dropped():
    async def test(wire, joined):
        joined.write(b"last")
        joined.abort()
        await asyncio.sleep(0)
        assert wire.is_over

    assert run(test) == []
