"""What the HTTP face offers to find out about messages: searches, traces, journals, redrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.http.exports import ExportOperations
from headrace.http.journals import JournalOperations
from headrace.http.redrives import RedriveOperations
from headrace.http.search import SearchOperations
from headrace.http.traces import TraceOperations

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.http.operations import Operation


def queries(services: Services) -> list[Operation]:
    """The operations, which share the tasks of one broker."""
    tasks = services.tasks
    return [
        *SearchOperations(services, tasks).operations,
        *ExportOperations(services).operations,
        *JournalOperations(services).operations,
        *TraceOperations(services, tasks).operations,
        *RedriveOperations(services, tasks).operations,
    ]
