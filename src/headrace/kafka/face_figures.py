"""Figures of the Kafka face: its requests, errors and connections.

Invariants: see `runtime.figures`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.runtime.figures import Figures, figure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.kafka.dispatch import KafkaFace

SOFTWARE_MAX: Final = 100
"""Names and versions of client software with series of their own."""
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
"""Of clients that do not say what they are; Kafka names them so, too."""


def kafka_figures(face: KafkaFace) -> Iterable[Figures]:
    """All of them."""
    yield from _requests(face)
    yield from _connections(face)


def _requests(face: KafkaFace) -> Iterable[Figures]:
    requests, durations = Figures("headrace_requests"), Figures("headrace_request_duration_seconds")
    for name, count, measured in face.request_figures():
        requests.add([name], count)
        if count:
            durations.add([name], measured)
    yield requests
    yield durations
    errors = Figures("headrace_request_errors")
    for name, error, count in face.error_figures():
        errors.add([name, error], count)
    yield errors
    yield figure("headrace_produce_errors", face.produce.errors_total)
    yield figure("headrace_fetch_bytes", face.fetch.bytes_total)
    yield figure("headrace_fetches_waiting", face.fetch.waiting)
    yield figure("headrace_fetch_sessions", len(face.fetch.sessions))


def _connections(face: KafkaFace) -> Iterable[Figures]:
    yield figure("headrace_connections", len(face.connections))
    found = Counter(
        (one.session.software_name or UNKNOWN, one.session.software_version or UNKNOWN)
        for one in face.connections
    )
    by_software = Figures("headrace_client_connections")
    for software, count in found.most_common(SOFTWARE_MAX):
        by_software.add(software, count)
    others = sum(count for _, count in found.most_common()[SOFTWARE_MAX:])
    if others:
        by_software.add([OTHER, OTHER], others)
    yield by_software
