"""Translates operations on keys into changes of ZooKeeper nodes. Pure.

Invariants: decides, sends nothing. Every change carries the version it expects, so a plan is
applied as intended or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import RequestInvalid
from headrace.metadata.store import ABSENT, ANY, MultiOperation
from headrace.metadata.watches import next_version
from headrace.zookeeper.client import Create, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TAKEOVER_VERSION_MAX = 1_000
"""A node cannot change its owner: it is recreated, and its version counted up step by step."""


class Found(NamedTuple):
    """The known state of a key: its version (or ABSENT) and owning session (or 0)."""

    version: int
    owner: int = 0


class Plan(NamedTuple):
    """The changes, and the resulting version of each operation."""

    parts: list[Create | Put | Delete]
    versions: list[int]


def plan_changes(
    operations: Sequence[MultiOperation],
    found: Mapping[str, Found] | None,
    session_or_none: int | None,
    path_of: Callable[[str], str],
) -> Plan:
    """Plan `operations`, given the state of their keys in `found`; None if it was not read.

    Without it, each key is assumed to be as the first operation on it expects. Keys that are put
    will belong to the session, if given. Raises VersionConflict, RequestInvalid.
    """
    now: dict[str, Found] = dict(found or {})
    plan = Plan([], [])
    for key, value, expected in operations:
        if key not in now:
            assert found is None, key
            assert expected != ANY, key
            now[key] = Found(expected)
        version, owner = now[key]
        path = path_of(key)
        next_ = next_version(key, version, expected)
        if value is None:
            if version != ABSENT:
                plan.parts.append(Delete(path, version))
            now[key] = Found(ABSENT)
            plan.versions.append(ABSENT)
            continue
        if version == ABSENT:
            plan.parts.append(Create(path, value, session_or_none is not None))
        elif owner == (session_or_none or 0):
            plan.parts.append(Put(path, value, version))
        else:
            plan.parts.extend(
                recreate_node(path, value, version, next_, session_or_none is not None)
            )
        now[key] = Found(next_, session_or_none or 0)
        plan.versions.append(next_)
    return plan


def recreate_node(
    path: str, value: bytes, version: int, next_: int, is_ephemeral: bool
) -> list[Create | Put | Delete]:
    """Replace a node by one with another owner, at version `next_`. Raises RequestInvalid."""
    if next_ > TAKEOVER_VERSION_MAX:
        raise RequestInvalid(
            f"{path} has changed {version} times, too often to change its owner: delete it first"
        )
    last = Put(path, value, next_ - 1) if next_ else Create(path, value, is_ephemeral)
    steps: list[Create | Put | Delete] = [Put(path, b"", step) for step in range(next_ - 1)]
    first = [Create(path, b"", is_ephemeral)] if next_ else []
    return [Delete(path, version), *first, *steps, last]
