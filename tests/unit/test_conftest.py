"""What `tests/conftest.py` promises: a failed test fails alone."""

from __future__ import annotations

import gc
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


RUNS_TWICE = """
import itertools
import pytest

runs = itertools.count()

@pytest.fixture(scope="session")
def kept():
    return []

@pytest.fixture(scope="module")
def made():
    made = set()
    yield made
    made.clear()

def test_that_makes_something_and_fails_at_first(made, kept):
    assert "topic" not in made
    made.add("topic")
    kept.append("run")
    assert next(runs) > 0

def test_of_something_else(made, kept):
    assert (made, kept) == ({"topic"}, ["run", "run"])
"""


@pytest.mark.parametrize(
    ("options", "result"),
    [((), "2 failed, 1 passed, 2 rerun"), (("--reruns", "0"), "2 failed, 1 passed in")],
)
def test_resources_left_open_by_a_failed_test_fail_no_other_test(tmp_path, options, result):
    assert result in outcome_of(TESTS, tmp_path, *options)


def test_a_second_run_has_what_its_module_shares_anew(tmp_path):
    assert "2 passed, 1 rerun" in outcome_of(RUNS_TWICE, tmp_path)


def outcome_of(tests, tmp_path, *options):
    """What pytest says of a module of tests in real time: what fails there runs once more."""
    folder = tmp_path / "tests" / "wire"
    folder.mkdir(parents=True)
    (folder / "test_two.py").write_text(tests)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "tests.conftest"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)),
            *("-p", "no:cacheprovider", *options, str(folder)),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_garbage_collector_passes_over_modules_and_collected_tests():
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
