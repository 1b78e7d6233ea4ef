"""Streams groups under faults: a task is active on one member, and all are assigned at rest."""

from __future__ import annotations

import os

from tests.property.coordination.streams_world import StreamsHistory

HISTORIES = int(os.environ.get("HEADRACE_GROUP_HISTORIES", "300"))
STEPS = 120


def test_no_task_is_active_on_two_members_and_all_are_assigned_in_the_end():
    for seed in range(HISTORIES):
        try:
            StreamsHistory(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error
