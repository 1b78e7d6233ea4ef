"""The limits of a tenant, which hold for all brokers together.

Invariants: pure. A rate is split among the brokers by what the tenant uses of each, so that the
shares never add up to more than the rate, whatever each broker knows of the others' use of late.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from headrace.coordination.quotas.entities import CONSUMER, INT64_MAX, PRODUCER, REQUEST
from headrace.coordination.quotas.token_bucket import WAIT_MS_MAX
from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOPICS, PARTITIONS = "topics", "partitions"
CONNECTIONS, GROUPS, STORED = "connections", "groups", "stored_bytes"
"""Do not change: stored."""
RATES: Final = (PRODUCER, CONSUMER, REQUEST)
COUNTS: Final = (CONNECTIONS, GROUPS, STORED)
"""What each broker counts, so that only all of them together know the sum."""
LIMITS: Final = (TOPICS, PARTITIONS, *COUNTS, *RATES)
REJECT, SLOW, DROP_OLDEST = "reject", "slow", "drop-oldest"
WHEN_FULL: Final = (REJECT, SLOW, DROP_OLDEST)
"""What happens to a tenant that stores all that it may. Do not change: stored."""
SLOW_FROM: Final = 0.8
"""Of a limit of stored bytes: from here on SLOW throttles."""
DROPS_TO: Final = 1.1
"""Of a limit of stored bytes: DROP_OLDEST refuses more, if less is dropped than is written."""
_KEPT: Final = 0.02
"""Of a rate, for each broker: what a tenant may use at once of one that it did not use before."""


def check_limits(limits: Mapping[str, float | None]) -> None:
    """Raise RequestInvalid unless a tenant can have these limits. None: not limited."""
    for name, value in limits.items():
        if name not in LIMITS:
            raise RequestInvalid(
                f"{name[:50]!r} is not a limit of tenants: use {', '.join(LIMITS)}"
            )
        if value is None:
            continue
        if not isfinite(value) or value != int(value) or not 1 <= value <= INT64_MAX:
            raise RequestInvalid(f"{name} must be an integer from 1 on; {value} was given")


def full_from(limit: float, when_full: str) -> float:
    """From how many stored bytes on nothing more is written."""
    return limit * DROPS_TO if when_full == DROP_OLDEST else limit


def slowed_ms(stored: float, limit: float) -> int:
    """For how long a write is throttled by SLOW: more and more, up to as long as a client waits."""
    part = (stored / limit - SLOW_FROM) / (1 - SLOW_FROM)
    return int(WAIT_MS_MAX * min(max(part, 0), 1))


def share_of(rate: float, own: float, others: Iterable[float]) -> float:
    """A broker's share of a rate. `own`, `others`: what the tenant used of it, and of each other
    broker, for each second of late; the rate itself where it would use more than it may."""
    kept = rate * _KEPT
    mine = min(own, rate) + kept
    return rate * mine / (mine + sum(min(one, rate) + kept for one in others))
