"""The limits of a tenant, which hold for all brokers together.

Invariants: pure. A rate is split among the brokers by what the tenant uses of each, so that the
shares never add up to more than the rate, whatever each broker knows of the others' use of late.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from headrace.coordination.quotas.entities import CONSUMER, INT64_MAX, PRODUCER
from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOPICS, PARTITIONS = "topics", "partitions"
"""Do not change: stored."""
RATES: Final = (PRODUCER, CONSUMER)
LIMITS: Final = (TOPICS, PARTITIONS, *RATES)
_KEPT: Final = 0.02
"""Of a rate, for each broker: what a tenant may use at once of one that it did not use before."""


def check_limits(limits: Mapping[str, float | None]) -> None:
    """Raise RequestInvalid unless a tenant can have these limits. None: not limited."""
    for name, value in limits.items():
        if name not in LIMITS:
            raise RequestInvalid(f"{name[:50]!r} is no limit of tenants: use {', '.join(LIMITS)}")
        if value is None:
            continue
        if not isfinite(value) or value != int(value) or not 1 <= value <= INT64_MAX:
            raise RequestInvalid(f"{name} must be an integer from 1 on; {value} was given")


def share_of(rate: float, own: float, others: Iterable[float]) -> float:
    """A broker's share of a rate. `own`, `others`: what the tenant used of it, and of each other
    broker, for each second of late; the rate itself where it would use more than it may."""
    kept = rate * _KEPT
    mine = min(own, rate) + kept
    return rate * mine / (mine + sum(min(one, rate) + kept for one in others))
