"""Figures of what clients of any protocol do: appends, logins, throttling, pushed metrics.

Invariants: see `runtime.figures`. Names and attributes of pushed metrics (KIP-714) are the clients'
own, so they are values of labels: a client cannot invent a metric of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.figures import Figures, figure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.services.appends import Appends
    from headrace.broker.services.client_quotas import ClientQuotas
    from headrace.broker.services.client_telemetry import ClientTelemetry
    from headrace.broker.services.fair_shares import FairShares
    from headrace.broker.services.services import Services


def append_figures(appends: Appends) -> Iterable[Figures]:
    """Of batches that clients have appended."""
    yield figure("headrace_produce_records", appends.records_total)
    yield figure("headrace_produce_bytes", appends.bytes_total)
    yield figure("headrace_produce_batches", appends.batches_total)
    yield figure("headrace_delayed_records", appends.delayed_total)
    yield figure("headrace_named_duplicates", appends.duplicates_total)
    yield figure("headrace_unread_attributes_batches", appends.unread_attributes_total)


def login_figures(services: Services) -> Iterable[Figures]:
    """Of clients that have authenticated, or tried to."""
    counted = services.authentication.logins.figures
    logins = Figures("headrace_logins")
    for outcome, counts in (("success", counted.succeeded), ("failure", counted.failed)):
        for mechanism, count in counts.items():
            logins.add([mechanism, outcome], count)
    yield logins


def throttling_figures(quotas: ClientQuotas, shares: FairShares) -> Iterable[Figures]:
    """Of quotas, by their type, and of what waited for its tenant's share."""
    yield figure("headrace_tenant_share_waits", shares.waits_total)
    counts = Figures("headrace_throttled_requests")
    times = Figures("headrace_throttle_time_seconds")
    for key, throttled in quotas.throttled.items():
        counts.add([key], throttled.count)
        times.add([key], throttled.time_ms / 1_000)
    yield counts
    yield times


def pushed_figures(telemetry: ClientTelemetry) -> Iterable[Figures]:
    """The figures of one broker's clients."""
    yield figure("headrace_client_pushes", telemetry.pushes_total)
    yield figure("headrace_client_pushes_refused", telemetry.refused_total)
    values = Figures("headrace_client_metric")
    for instance, client, points in telemetry.series():
        software = f"{client.software_name} {client.software_version}".strip()
        for point in points:
            shown = ",".join(f"{name}={value}" for name, value in point.attributes)
            labels = [client.client_id, instance, software, point.name, shown]
            values.add(labels, point.value)
    yield values
