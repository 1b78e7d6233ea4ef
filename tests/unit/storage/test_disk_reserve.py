"""The disk's reserve: refusals begin and end once, and the log says so."""

from __future__ import annotations

import errno
import logging

import pytest

from headrace.errors import DiskFull
from headrace.runtime.disk import SystemDisk
from headrace.storage.files.disk_reserve import DiskReserve, NoRoomError

MIB = 1 << 20
TOTAL = 200 * MIB
RESERVE = 10 * MIB


class _Disk(SystemDisk):
    free = TOTAL

    def space(self, path: str, /) -> tuple[int, int]:
        return self.free, TOTAL


def _room() -> tuple[DiskReserve, _Disk]:
    disk = _Disk()
    return DiskReserve(disk, "/data"), disk


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.name.endswith(".disk_reserve")]


def test_appends_are_refused_before_they_need_the_reserve() -> None:
    room, disk = _room()
    disk.free = RESERVE + 3 * MIB
    room.take(MIB)
    with pytest.raises(NoRoomError, match="13 MiB of 200 MiB are free, the last 10 MiB"):
        room.take(2 * MIB)


def test_a_shortage_begins_and_ends_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    room, disk = _room()
    disk.free = RESERVE + MIB
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(NoRoomError) as refused:
                room.take(MIB)
            assert isinstance(room.failure(refused.value, "writing"), DiskFull)
            assert room.space().is_full
        assert _lines(caplog) == ["ERROR"]
        disk.free = RESERVE + 3 * MIB
        for _ in range(3):
            assert not room.space().is_full
            room.take(MIB // 4)
    assert _lines(caplog) == ["ERROR", "WARNING"]


def test_small_appends_wait_for_the_room_that_a_large_one_did_not_find() -> None:
    room, disk = _room()
    disk.free = RESERVE + 9 * MIB
    with pytest.raises(NoRoomError) as refused:
        room.take(10 * MIB)
    room.failure(refused.value, "writing")
    with pytest.raises(NoRoomError):
        room.take(1)
    disk.free = RESERVE + 20 * MIB
    room.take(1)
    assert not room.is_full


def test_a_quota_ends_with_a_write_that_goes_through(caplog: pytest.LogCaptureFixture) -> None:
    room, _disk = _room()
    with caplog.at_level(logging.INFO):
        found = room.failure(OSError(errno.EDQUOT, "Disk quota exceeded"), "writing")
        assert isinstance(found, DiskFull)
        assert room.space().is_full, "free bytes say nothing about a quota"
        room.take(MIB)  # may be tried
        assert room.is_full
        room.wrote()
    assert not room.space().is_full
    assert _lines(caplog) == ["ERROR", "WARNING"]


def test_other_faults_are_no_shortage() -> None:
    room, _disk = _room()
    assert room.failure(OSError(errno.EIO, "I/O error"), "writing") is None
    assert not room.is_full
