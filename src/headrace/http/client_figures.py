"""Prometheus figures of what clients have pushed (KIP-714).

Invariants: names and attributes are the clients' own, so they are values of labels: a client cannot
invent a metric of the broker, and `generate_latest` escapes what it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.http.metric_table import family, figure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from headrace.broker.services.client_telemetry import ClientTelemetry


def client_figures(telemetry: ClientTelemetry) -> Iterable[Metric]:
    """The figures of one broker's clients."""
    yield figure("headrace_client_pushes", telemetry.pushes_total)
    yield figure("headrace_client_pushes_refused", telemetry.refused_total)
    values = family("headrace_client_metric")
    for instance, client, points in telemetry.series():
        software = f"{client.software_name} {client.software_version}".strip()
        for point in points:
            shown = ",".join(f"{name}={value}" for name, value in point.attributes)
            labels = [client.client_id, instance, software, point.name, shown]
            values.add_metric(labels, point.value)
    yield values
