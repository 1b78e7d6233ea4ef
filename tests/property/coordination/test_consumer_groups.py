"""Consumer groups of the new protocol under faults: one owner at any time, all assigned at rest."""

from __future__ import annotations

import os

from tests.property.coordination.consumer_world import History
from tests.property.coordination.migration_world import MixedHistory

HISTORIES = int(os.environ.get("HEADRACE_GROUP_HISTORIES", "300"))
STEPS = 80
FULL_GROUP = 2120
"""A mixed history in which a classic member finds the group full."""


def test_no_partition_is_with_two_members_and_all_are_assigned_in_the_end():
    for seed in range(HISTORIES):
        try:
            History(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}") from error


def test_members_of_both_protocols_share_a_group_that_changes_its_own():
    for seed in (*range(HISTORIES), FULL_GROUP):
        try:
            MixedHistory(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"mixed history {seed}: {error}") from error
