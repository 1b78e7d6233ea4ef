"""Fixtures of tests over a real BookKeeper."""

from __future__ import annotations

from tests.cluster.bookkeeper_rig import with_store  # noqa: F401 - a fixture
