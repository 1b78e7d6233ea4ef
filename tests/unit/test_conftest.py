"""What `tests/conftest.py` promises: a failed test fails alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import gc
import socket

class Client:
    def __init__(self):
        self.itself = self  # freed by the collector alone
        self.socket = socket.socket()

def test_that_fails_with_a_socket_open():
    client = Client()
    assert client.socket is None

def test_that_fails_too():
    raise ValueError

def test_of_something_else():
    gc.collect()
"""


@pytest.mark.parametrize(
    ("options", "result"),
    [((), "2 failed, 1 passed, 2 rerun"), (("--reruns", "0"), "2 failed, 1 passed in")],
)
def test_resources_left_open_by_a_failed_test_fail_no_other_test(tmp_path, options, result):
    folder = tmp_path / "tests" / "wire"  # what fails there runs once more
    folder.mkdir(parents=True)
    (folder / "test_two.py").write_text(TESTS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "tests.conftest"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)),
            *("-p", "no:cacheprovider", *options, str(folder)),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result in done.stdout, done.stdout + done.stderr
