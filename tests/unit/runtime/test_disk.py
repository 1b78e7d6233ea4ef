"""The machine's disk through its seam."""

from __future__ import annotations

import os

import pytest

from headrace.runtime.disk import CREATE, SystemDisk


def test_writing_back_changes_no_bytes(tmp_path):
    disk = SystemDisk()
    fd = disk.open(str(tmp_path / "file"), CREATE)
    disk.pwrite(fd, b"bytes", 0)
    disk.write_back(fd, 0, 5)
    assert disk.pread(fd, 5, 0) == b"bytes"
    disk.close(fd)


def test_writing_back_is_left_out_where_it_is_not_supported():
    ends = os.pipe()
    SystemDisk().write_back(ends[1], 0, 5)
    for fd in ends:
        os.close(fd)


def test_an_error_of_writing_back_is_raised(tmp_path):
    disk = SystemDisk()
    fd = disk.open(str(tmp_path / "file"), CREATE)
    disk.close(fd)
    with pytest.raises(OSError, match="descriptor"):
        disk.write_back(fd, 0, 5)
