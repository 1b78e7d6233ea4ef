"""Hooks of schemathesis: shorten the wait time of requests that may wait for a minute or for ever.

Invariants: only a valid `wait_ms` is shortened, so that limits are still tested.
"""

from __future__ import annotations

from typing import Any

import schemathesis

WAIT_MS = 50
WAIT_MS_MAX = 60_000
STREAM_S = 1.0
"""How long a stream of events, which never ends, is read."""
STREAMS = ("/tail",)


def _shorten(holder: Any) -> None:
    wait_ms = holder.get("wait_ms") if isinstance(holder, dict) else None
    if isinstance(wait_ms, int | float) and WAIT_MS < wait_ms <= WAIT_MS_MAX:
        holder["wait_ms"] = WAIT_MS


@schemathesis.hook
def before_call(_context: Any, case: Any, kwargs: Any) -> None:
    """Called for each request before it is sent."""
    _shorten(case.body)
    _shorten(case.query)
    if case.path.endswith(STREAMS):
        kwargs["timeout"] = STREAM_S
