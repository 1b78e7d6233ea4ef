"""Checkers of groups: one owner of a partition at a time, and old generations are rejected.

Invariants: pure; linear in events. A disconnected member does not know that it has lost its
partitions, so an overlap alone is no violation. Violations are two owners in one generation, and an
accepted commit of a member whose partition had been assigned to another before it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Commit, Facts, Ownership
from headrace_verify.history import OK

if TYPE_CHECKING:
    from collections.abc import Iterator


def two_owners(facts: Facts) -> Iterator[Anomaly]:
    """A partition assigned to two members in one generation."""
    owners: dict[tuple[str, int, str, int], str] = {}
    for change in facts.ownerships:
        if not change.is_assigned or change.group is None or change.generation < 0:
            continue
        for topic, number in change.partitions:
            key = change.group, change.generation, topic, number
            owner = owners.setdefault(key, change.member)
            if owner != change.member:
                what = (
                    f"generation {change.generation} of group {change.group}: {owner} and"
                    f" {change.member} both own it"
                )
                yield Anomaly("two owners", what, change.at_ns, topic, number)


class _Owned:
    """The last owner of a partition, and when each process owned it."""

    def __init__(self) -> None:
        self.owner = ""
        self.given_ns: dict[str, int] = {}


def commits_of_former_owners(facts: Facts) -> Iterator[Anomaly]:
    """An accepted commit that began after its partition had been assigned to another member."""
    owned: dict[tuple[str, str, int], _Owned] = {}
    changes = iter(facts.ownerships)
    change = next(changes, None)
    for commit in facts.commits:
        while change is not None and change.at_ns < commit.invoked_ns:
            _note(owned, change)
            change = next(changes, None)
        if commit.outcome != OK:
            continue
        for topic, number, offset in commit.offsets:
            state = owned.get((commit.group, topic, number))
            if state is None or state.owner in {"", commit.process}:
                continue
            if commit.process not in state.given_ns:
                continue  # it never claimed ownership
            what = f"{commit.process} committed {offset} for group {commit.group}, after"
            what += f" {state.owner} had been assigned the partition"
            yield Anomaly("former owner's commit", what, commit.ended_ns, topic, number)


def _note(owned: dict[tuple[str, str, int], _Owned], change: Ownership) -> None:
    if change.group is None:
        return
    for topic, number in change.partitions:
        state = owned.setdefault((change.group, topic, number), _Owned())
        if change.is_assigned:
            state.owner = change.process
            state.given_ns[change.process] = change.at_ns
        else:
            state.given_ns.pop(change.process, None)
            if state.owner == change.process:
                state.owner = ""


def commits_of_old_generations(facts: Facts) -> Iterator[Anomaly]:
    """An accepted commit of a generation after an assignment of a newer one."""
    newest: dict[str, int] = {}
    changes = iter(facts.ownerships)
    change = next(changes, None)
    for commit in facts.commits:
        while change is not None and change.at_ns < commit.invoked_ns:
            if change.is_assigned and change.group is not None:
                newest[change.group] = max(change.generation, newest.get(change.group, -1))
            change = next(changes, None)
        if _is_old(commit, newest):
            what = f"{commit.process} committed with generation {commit.generation} of group"
            what += f" {commit.group}, which was in generation {newest[commit.group]}"
            yield Anomaly("old generation's commit", what, commit.ended_ns)


def _is_old(commit: Commit, newest: dict[str, int]) -> bool:
    return commit.outcome == OK and 0 <= commit.generation < newest.get(commit.group, -1)
