"""How a topic keeps half messages: when their producers are asked, and how often."""

from __future__ import annotations

from typing import NamedTuple

DAY_MS = 24 * 3_600_000


class HalfConfig(NamedTuple):
    """Defaults are those of RocketMQ 5, except `audit_ms`, which it does not have."""

    first_check_ms: int = 6_000
    """How long after its arrival a producer is first asked about a half message."""
    check_interval_ms: int = 30_000
    checks_max: int = 15
    """After so many checks without an answer the message is rolled back."""
    audit_ms: int = DAY_MS
    """How long the outcome of a half message can be listed."""
