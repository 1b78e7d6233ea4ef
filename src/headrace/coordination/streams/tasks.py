"""Tasks of a streams group: sets by role, and the tasks of a member.

Invariants: values. A task is a subtopology's id and a partition. Sets are mappings of subtopology
ids to partitions, without empty entries, so that equal sets compare equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

TaskSet = dict[str, tuple[int, ...]]
"""Partitions by subtopology, sorted."""
EpochSet = dict[str, dict[int, int]]
"""Member epochs at which tasks were assigned, by subtopology and partition."""
Task = tuple[str, int]


class StreamTasks(NamedTuple):
    """Tasks by role. An active task processes; a standby task replicates its state."""

    active: TaskSet
    standby: TaskSet
    warmup: TaskSet

    def roles(self) -> tuple[TaskSet, TaskSet, TaskSet]:
        """The three sets."""
        return self.active, self.standby, self.warmup


class HeldTasks(NamedTuple):
    """A member's tasks. Active tasks come with the epoch of their assignment (KIP-1251)."""

    active: EpochSet
    standby: TaskSet
    warmup: TaskSet

    def plain(self) -> StreamTasks:
        """Without the epochs."""
        active = {one: tuple(sorted(numbers)) for one, numbers in self.active.items()}
        return StreamTasks(active, self.standby, self.warmup)

    def roles(self) -> tuple[Mapping[str, Collection[int]], ...]:
        """The three sets."""
        return self.active, self.standby, self.warmup

    def is_empty(self) -> bool:
        """Whether there are no tasks."""
        return not (self.active or self.standby or self.warmup)


NO_TASKS = StreamTasks({}, {}, {})
NOTHING_HELD = HeldTasks({}, {}, {})


def task_set(tasks: Iterable[Task]) -> TaskSet:
    """The tasks as a set."""
    found: dict[str, list[int]] = {}
    for subtopology_id, number in sorted({*tasks}):
        found.setdefault(subtopology_id, []).append(number)
    return {one: tuple(numbers) for one, numbers in found.items()}


def each(tasks: Mapping[str, Iterable[int]]) -> Iterator[Task]:
    """Iterate over the tasks of a set."""
    for subtopology_id, numbers in tasks.items():
        for number in numbers:
            yield subtopology_id, number


def overlaps(tasks: StreamTasks, held: HeldTasks) -> bool:
    """Whether any task is in both in the same role."""
    return any(
        number in mine.get(subtopology_id, ())
        for mine, theirs in zip(tasks.roles(), held.roles(), strict=True)
        for subtopology_id, number in each(theirs)
    )


def contains(tasks: StreamTasks, held: HeldTasks) -> bool:
    """Whether `tasks` has all held tasks, in the same roles."""
    return all(
        number in mine.get(subtopology_id, ())
        for mine, theirs in zip(tasks.roles(), held.roles(), strict=True)
        for subtopology_id, number in each(theirs)
    )
