"""The settings of transaction coordinators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionConfig:
    """Kafka's names in the comments."""

    timeout_ms_max: int = 15 * 60 * 1000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """transactional.id.expiration.ms"""
    expiration_check_interval_ms: int = 3600 * 1000
    """transaction.remove.expired.transaction.cleanup.interval.ms"""
    expired_per_tick_max: int = 1_000
    """Transactional ids removed by one command, so that it does not block the loop."""
