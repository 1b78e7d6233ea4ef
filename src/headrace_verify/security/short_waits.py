"""Hooks of schemathesis: shorten the wait time of requests that may wait for a minute.

Invariants: only a valid `wait_ms` is shortened, so that limits are still tested.
"""

from __future__ import annotations

from typing import Any

import schemathesis

WAIT_MS = 50
WAIT_MS_MAX = 60_000


def _shorten(holder: Any) -> None:
    wait_ms = holder.get("wait_ms") if isinstance(holder, dict) else None
    if isinstance(wait_ms, int | float) and WAIT_MS < wait_ms <= WAIT_MS_MAX:
        holder["wait_ms"] = WAIT_MS


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Called for each request before it is sent."""
    _shorten(case.body)
    _shorten(case.query)
