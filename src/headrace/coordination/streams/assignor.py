"""The sticky assignor of streams groups, which assigns tasks to members.

Invariants: a pure function of its arguments, with results independent of set order. Each task is
active on one member, and the numbers of active tasks differ by at most 1. Existing assignments are
kept as far as that allows; then a task goes to a member that has its state (a standby, or a former
owner), then to the member with the fewest tasks. Each stateful task has `standby_count` standbys,
in processes that differ from its active task's and from each other, as far as there are processes.
No warm-up tasks are assigned, as in Kafka 4.3.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordination.streams.tasks import NO_TASKS, StreamTasks, Task, each, task_set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StreamsAssignee(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    process_id: str


class SubtopologyShape(NamedTuple):
    """A subtopology as the assignor sees it."""

    task_count: int
    has_state: bool


def assign_tasks(
    members: Sequence[StreamsAssignee],
    subtopologies: Mapping[str, SubtopologyShape],
    previous: Mapping[str, StreamTasks],
    standby_count: int,
) -> dict[str, StreamTasks]:
    """The target assignment of every member."""
    if not members:
        return {}
    return _Assignment(members, subtopologies, previous).assign(standby_count)


class _Assignment:
    """One computation. Members and processes are represented by indexes, in the order of their
    ids."""

    def __init__(
        self,
        members: Sequence[StreamsAssignee],
        subtopologies: Mapping[str, SubtopologyShape],
        previous: Mapping[str, StreamTasks],
    ) -> None:
        ordered = sorted(members)
        self._ids = [member.member_id for member in ordered]
        names = sorted({member.process_id for member in ordered})
        place = {name: number for number, name in enumerate(names)}
        self._process_of = [place[member.process_id] for member in ordered]
        self._members_of: list[list[int]] = [[] for _ in names]
        for number, process in enumerate(self._process_of):
            self._members_of[process].append(number)
        self._shapes = subtopologies
        self._active: list[set[Task]] = [set() for _ in ordered]
        self._standby: list[set[Task]] = [set() for _ in ordered]
        self._in_process: list[set[Task]] = [set() for _ in names]
        self._loads = [0] * len(names)
        self._was_active: dict[Task, int] = {}
        self._was_standby: dict[Task, list[int]] = {}
        for number, member_id in enumerate(self._ids):
            before = previous.get(member_id, NO_TASKS)
            for task in each(before.active):
                self._was_active[task] = number
            for task in (*each(before.standby), *each(before.warmup)):
                self._was_standby.setdefault(task, []).append(number)

    def assign(self, standby_count: int) -> dict[str, StreamTasks]:
        """The target assignment of every member."""
        tasks = [
            (one, number)
            for one, shape in sorted(self._shapes.items())
            for number in range(shape.task_count)
        ]
        self._assign_active(tasks)
        if standby_count:
            self._assign_standby([t for t in tasks if self._shapes[t[0]].has_state], standby_count)
        return {
            member_id: StreamTasks(task_set(active), task_set(standby), {})
            for member_id, active, standby in zip(
                self._ids, self._active, self._standby, strict=True
            )
        }

    def _give(self, number: int, task: Task, side: list[set[Task]]) -> None:
        side[number].add(task)
        process = self._process_of[number]
        self._in_process[process].add(task)
        self._loads[process] += 1

    def _size(self, number: int) -> int:
        return len(self._active[number]) + len(self._standby[number])

    def _relative_load(self, process: int) -> float:
        return self._loads[process] / len(self._members_of[process])

    def _assign_active(self, tasks: list[Task]) -> None:
        quota = _Quota(len(tasks), len(self._ids))
        # By partition: a member keeps the tasks of the same partition in all subtopologies.
        left: list[Task] = []
        for task in sorted(tasks, key=_by_partition):
            owner = self._was_active.get(task)
            if owner is not None and quota.may_take(len(self._active[owner])):
                self._give(owner, task, self._active)
                quota.took(len(self._active[owner]))
            else:
                left.append(task)
        free: list[Task] = []
        for task in left:
            holders = self._was_standby.get(task, ())
            holder = min(holders, key=self._by_load, default=None)
            if holder is not None and quota.may_take(len(self._active[holder])):
                self._give(holder, task, self._active)
                quota.took(len(self._active[holder]))
            else:
                free.append(task)
        self._spread(sorted(free))

    def _by_load(self, number: int) -> tuple[float, int, int]:
        return self._relative_load(self._process_of[number]), self._size(number), number

    def _spread(self, tasks: list[Task]) -> None:
        """Assign each task to the member with the fewest, in the least loaded process among
        these."""
        heap = [self._by_size(number) for number in range(len(self._ids))]
        heapify(heap)
        for task in tasks:
            # Loads only grow: a stale entry comes up too early and is updated here.
            while (now := self._by_size(heap[0][2])) != heap[0]:
                heapreplace(heap, now)
            number = heap[0][2]
            self._give(number, task, self._active)
            heapreplace(heap, self._by_size(number))

    def _by_size(self, number: int) -> tuple[int, float, int]:
        return self._size(number), self._relative_load(self._process_of[number]), number

    def _assign_standby(self, tasks: list[Task], count: int) -> None:
        quota = _Quota(
            sum(map(len, self._active)) + len(tasks) * min(count, len(self._members_of) - 1),
            len(self._ids),
        )
        for number in range(len(self._ids)):
            quota.took(self._size(number))
        for task in sorted(tasks, key=_by_partition):
            wanted = count - self._keep_standbys(task, count, quota)
            for _ in range(wanted):
                processes = [
                    p for p in range(len(self._members_of)) if task not in self._in_process[p]
                ]
                if not processes:
                    break
                process = min(processes, key=lambda p: (self._relative_load(p), p))
                number = min(self._members_of[process], key=lambda n: (self._size(n), n))
                self._give(number, task, self._standby)
                quota.took(self._size(number))

    def _keep_standbys(self, task: Task, count: int, quota: _Quota) -> int:
        """Keep the task's state where it is: with its former active member, then its standbys."""
        kept = 0
        former = self._was_active.get(task)
        holders = [*([] if former is None else [former]), *self._was_standby.get(task, ())]
        for number in holders:
            if kept == count:
                break
            is_possible = task not in self._in_process[self._process_of[number]]
            if is_possible and quota.may_take(self._size(number)):
                self._give(number, task, self._standby)
                quota.took(self._size(number))
                kept += 1
        return kept


class _Quota:
    """How many tasks a member may keep, so that counts differ by at most one."""

    def __init__(self, task_count: int, member_count: int) -> None:
        self._floor, self._wide_left = divmod(task_count, member_count)

    def may_take(self, size: int) -> bool:
        """Whether a member with `size` tasks may have another one."""
        return size < self._floor or (size == self._floor and self._wide_left > 0)

    def took(self, size: int) -> None:
        """A member now has `size` tasks, one more than before."""
        if size == self._floor + 1:
            self._wide_left -= 1


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]
