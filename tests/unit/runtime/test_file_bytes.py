"""Bytes that go from a file to a socket: in order, each once, whatever the socket takes."""

from __future__ import annotations

import os
import random
import socket

import pytest

from headrace.runtime.disk import SystemDisk
from headrace.runtime.file_bytes import FileBytes, in_memory, send_now

CONTENT = random.Random(5).randbytes(3 << 20)


@pytest.fixture
def opened(tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield lambda: fd
    os.close(fd)


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    yield near, far
    near.close()
    far.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_reader_gets_every_byte_in_order(opened, pair, seed):
    near, far = pair
    rng = random.Random(seed)
    parts, wanted = [], b""
    for _ in range(rng.randrange(1, 6)):
        start = rng.randrange(len(CONTENT))
        size = min(rng.choice((1, 4_095, 70_000, 900_000)), len(CONTENT) - start)
        if rng.random() < 0.5:
            parts.append(FileBytes(opened, start, size))
            wanted += CONTENT[start : start + size]
        else:
            parts.append(rng.randbytes(rng.choice((1, 60, 300_000))))
            wanted += parts[-1]
    got, attempts = b"", 0
    while len(got) < len(wanted):
        left = send_now(near, parts)
        assert sum(map(len, parts)) - sum(map(len, left)) >= 0
        parts = left
        attempts += 1
        try:
            while True:
                got += far.recv(rng.choice((1_000, 100_000)))
        except BlockingIOError:
            assert attempts < 1_000, "it goes on"
    assert got == wanted
    assert not parts


def test_bytes_that_a_socket_did_not_accept_can_be_read(opened, pair):
    near, far = pair
    left = send_now(near, [b"head", FileBytes(opened, 100, 2 << 20), b"tail"])
    rest = b"".join(in_memory(left))
    got = b""
    while len(got) + len(rest) < 4 + (2 << 20) + 4:
        got += far.recv(1 << 20)
    assert got + rest == b"head" + CONTENT[100 : 100 + (2 << 20)] + b"tail"


def test_to_a_closed_reader_nothing_is_sent(opened, pair):
    near, far = pair
    far.close()
    assert sum(map(len, send_now(near, [b"head", FileBytes(opened, 0, 1 << 20)]))) == 4 + (1 << 20)


def test_a_file_that_ends_too_early_is_an_error_not_a_short_answer(opened, pair):
    near, _far = pair
    beyond = FileBytes(opened, len(CONTENT) - 10, 20)
    left = send_now(near, [beyond])
    assert sum(map(len, left)) == 10
    with pytest.raises(OSError, match="10 bytes too short"):
        in_memory(left)


def test_pages_that_left_memory_are_not_called_cached(tmp_path):
    disk = SystemDisk()
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDWR)
    if not disk.is_cached(fd, len(CONTENT), 0):
        os.close(fd)
        pytest.skip("this kernel does not tell what it has in memory (Linux does since 6.5)")
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    dropped = not disk.is_cached(fd, 4_096, 1 << 20)
    whole = disk.is_cached(fd, len(CONTENT), 0)
    os.close(fd)
    if not dropped:
        pytest.skip("this file system keeps its pages")
    assert not whole
