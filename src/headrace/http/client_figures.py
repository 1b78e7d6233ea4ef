"""Prometheus figures of what clients have pushed (KIP-714).

Invariants: names and attributes are the clients' own, so they are values of labels: a client cannot
invent a metric of the broker, and `generate_latest` escapes what it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.services.client_telemetry import ClientTelemetry

LABELS = ["client_id", "instance", "software", "metric", "attributes"]


def client_figures(telemetry: ClientTelemetry) -> Iterable[Metric]:
    """The figures of one broker's clients."""
    yield CounterMetricFamily(
        "headrace_client_pushes", "Pushes of metrics.", value=telemetry.pushes_total
    )
    yield CounterMetricFamily(
        "headrace_client_pushes_refused",
        "Requests about client metrics that were refused: too early, too large, malformed.",
        value=telemetry.refused_total,
    )
    family = GaugeMetricFamily(
        "headrace_client_metric", "The last value that a client has pushed.", labels=LABELS
    )
    for instance, client, points in telemetry.series():
        software = f"{client.software_name} {client.software_version}".strip()
        for point in points:
            shown = ",".join(f"{name}={value}" for name, value in point.attributes)
            labels = [client.client_id, instance, software, point.name, shown]
            family.add_metric(labels, point.value)
    yield family
