"""A real ZooKeeper and real bookies: shared by the whole session, or a test's own to kill.

Invariants: `tests/conftest.py` makes these fixtures known everywhere; nothing is started
before a test asks. Where Java or the jars cannot be had, what needs them is skipped, loudly.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.dev_cluster.cluster import DevCluster
from headrace.dev_cluster.parts import Parts, find_parts
from headrace.dev_cluster.settings import ClusterOptions
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator


SESSION_MS = 4_000
"""Of bookies: shorter than in production, so that those that were killed are soon back."""


@contextmanager
def cluster(parts: Parts, **options) -> Iterator[DevCluster]:
    """A started cluster in a folder of its own, killed and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-cluster-"))
    options = {"bookie_session_timeout_ms": SESSION_MS} | options
    try:
        with DevCluster(folder, ClusterOptions(**options), parts) as started:
            yield started
            started.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster_parts() -> Parts:
    """A Java, BookKeeper's and ZooKeeper's jars."""
    try:
        return find_parts()
    except HeadraceError as error:
        pytest.skip(f"NO REAL BOOKKEEPER AND ZOOKEEPER: {str(error)[:300]}")


@pytest.fixture(scope="session")
def shared_cluster(cluster_parts):
    """A ZooKeeper and 4 bookies, for all tests that leave them running."""
    with cluster(cluster_parts, bookie_count=4) as started:
        yield started


@pytest.fixture(scope="session")
def shared_zookeeper(cluster_parts):
    """A ZooKeeper without bookies, for all tests that leave it running."""
    with cluster(cluster_parts, bookie_count=0) as started:
        yield started.zookeeper


@pytest.fixture
def make_cluster(cluster_parts):
    """Starts clusters of the test's own, to kill and to suspend: make_cluster(bookie_count=3).

    Its keywords are those of ClusterOptions; `bookie_count=0` gives a ZooKeeper alone.
    """
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(cluster(cluster_parts, **options))
