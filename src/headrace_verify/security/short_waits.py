"""Hooks of schemathesis: shorten waits, try changes of settings only, and name a topic and a group
that exist.

Invariants: only a valid wait is shortened, so that limits are still tested. Every second
request that the document allows asks for the topic and the group of `KNOWN`, because generated
names are hardly ever those of something that exists, and 404 tests no more than the route.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import schemathesis

from headrace_verify.security.known import KNOWN

WAITS = ("wait_ms", "span_ms")
WAIT_MS_LOW = 100
WAIT_MS_MAX = 60_000
STREAM_S = 1.0
"""How long a stream of events, which never ends, may be silent before it is left."""
STREAM = "text/event-stream"
SPARED: Final = frozenset(("deleteTopic", "deleteGroup", "growTopic", "followTopic"))
"""Operations that would take it away, let it grow to ten thousand partitions, or wait in vain."""
ONLY_TRIED: Final = frozenset(("changeBrokerConfig", "changeClusterConfig"))
"""Operations that could leave the broker without connections for the other requests."""
_TURNS = itertools.cycle((True, False))


def _is_stream(case: Any) -> bool:
    """Whether the document says that the operation's answer never ends."""
    answers = case.operation.definition.raw["responses"].values()
    return any(STREAM in answer.get("content", {}) for answer in answers)


def _shorten(holder: Any) -> None:
    for name in WAITS if isinstance(holder, dict) else ():
        digits = str(holder.get(name)).removesuffix(".0")  # text in a query; 5.0 is an integer
        if digits.isdecimal() and WAIT_MS_LOW < int(digits) <= WAIT_MS_MAX:
            holder[name] = WAIT_MS_LOW


def _name_known(case: Any) -> None:
    meta, name = case.meta, case.operation.definition.raw["operationId"]
    if meta is None or not meta.generation.mode.is_positive or name in SPARED or not next(_TURNS):
        return
    for holder in (case.path_parameters, case.body):
        if isinstance(holder, dict):
            holder.update({name: KNOWN[name] for name in KNOWN if name in holder})


def _only_try(case: Any) -> None:
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and case.operation.definition.raw["operationId"] in ONLY_TRIED:
        case.query = {**(case.query or {}), "dry_run": "true"}


@schemathesis.hook
def before_call(_context: Any, case: Any, kwargs: Any) -> None:
    """Called for each request before it is sent."""
    _shorten(case.body)
    _shorten(case.query)
    _name_known(case)
    _only_try(case)
    if _is_stream(case):
        kwargs["timeout"] = STREAM_S
