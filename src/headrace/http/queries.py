"""What the HTTP face offers to find out about messages: searches, traces, redrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.services.background_tasks import BackgroundTasks
from headrace.http.redrives import RedriveOperations
from headrace.http.search import SearchOperations
from headrace.http.traces import TraceOperations

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.http.operations import Operation


def queries(node: Node) -> list[Operation]:
    """The operations, which share the tasks of one broker."""
    tasks = BackgroundTasks(node.tasks, node.clock, node.randomness)
    return [
        *SearchOperations(node, tasks).operations,
        *TraceOperations(node, tasks).operations,
        *RedriveOperations(node, tasks).operations,
    ]
