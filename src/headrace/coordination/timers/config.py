"""A topic's settings for half messages: when and how often producers are checked back."""

from __future__ import annotations

from typing import NamedTuple

DAY_MS = 24 * 3_600_000


class HalfConfig(NamedTuple):
    """Defaults are those of RocketMQ 5, except `audit_ms`, which it does not have."""

    first_check_ms: int = 6_000
    """The delay between a half message's arrival and its first check-back."""
    check_interval_ms: int = 30_000
    checks_max: int = 15
    """The number of unanswered check-backs after which the message is rolled back."""
    audit_ms: int = DAY_MS
    """How long the outcome of a half message is kept for listing."""
