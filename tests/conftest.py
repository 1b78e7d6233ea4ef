"""What all tests share: a real cluster, and which warnings of others are not ours to mend."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from headrace.runtime import compiled

if os.environ.get(compiled.SWITCH, "0") != "0":
    compiled.use()  # before anything imports the plain modules: all tests run on the compiled core

from tests.cluster.fixtures import (  # noqa: F401 - fixtures are found by their names
    cluster_parts,
    make_cluster,
    shared_cluster,
    shared_zookeeper,
)

OTHERS_WARNINGS = (
    # kafka-python 3.0 reads its schemas by a call that Python 3.11 and 3.12 call old.
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
)


@pytest.fixture(autouse=True)
def own_log_level():
    """Commands that run in a test's process quieten the log, for good."""
    logger = logging.getLogger("headrace")
    level = logger.level
    yield
    logger.setLevel(level)


def pytest_configure(config):
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in OTHERS_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
