"""What the dashboards show: panels with PromQL expressions.

Invariants: a value; every expression names metrics of `headrace.http.metric_rows`. The first row of
a dashboard has single figures that say whether all is well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_BROKER: Final = 'instance=~"$broker"'
_INSTANCES: Final = "label_values(headrace_build_info, instance)"


class Panel(NamedTuple):
    """One panel."""

    title: str
    queries: tuple[tuple[str, str], ...]
    """(expression, legend)."""
    unit: str = "short"
    """Grafana's name of the unit."""
    description: str = ""
    is_stat: bool = False
    alarm: float | None = None
    """A single figure is red from here on."""


class Dashboard(NamedTuple):
    """One dashboard."""

    name: str
    title: str
    variables: Mapping[str, str]
    """The names of its variables, with the query of their values."""
    panels: tuple[Panel, ...]


def _stat(title: str, expression: str, unit: str = "short", alarm: float | None = None) -> Panel:
    return Panel(title, ((expression, ""),), unit, is_stat=True, alarm=alarm)


def _rate(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_BROKER}{more}}}[5m]))"


def _quantile(metric: str, by: str = "", q: str = "0.99", more: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{_BROKER}{more}}}[5m])))"
    )


_TOPIC: Final = ', topic=~"$topic"'
_GROUP: Final = ', group=~"$group"'


def _by_queue(metric: str) -> str:
    return f"sum by (group, topic) ({metric}{{{_BROKER}{_GROUP}}})"


OVERVIEW: Final = Dashboard(
    "overview",
    "overview",
    {"broker": _INSTANCES},
    (
        _stat("Brokers", f"count(headrace_build_info{{{_BROKER}}})"),
        _stat("Problems", f"sum(headrace_problems{{{_BROKER}}})", alarm=1),
        _stat("Offline partitions", f"max(headrace_partitions_offline{{{_BROKER}}})", alarm=1),
        _stat("Connections", f"sum(headrace_connections{{{_BROKER}}})"),
        _stat(
            "Largest lag",
            f"max(headrace_group_lag_seconds{{{_BROKER}}})",
            "s",
            alarm=300,
        ),
        _stat(
            "Free disk",
            f"min(headrace_disk_free_bytes{{{_BROKER}}} / headrace_disk_total_bytes{{{_BROKER}}})",
            "percentunit",
        ),
        Panel(
            "Bytes in and out",
            (
                (_rate("headrace_topic_in_bytes_total", "instance"), "{{instance}} in"),
                (_rate("headrace_topic_out_bytes_total", "instance"), "{{instance}} out"),
            ),
            "Bps",
        ),
        Panel(
            "Records in and out",
            (
                (_rate("headrace_topic_in_records_total", "instance"), "{{instance}} in"),
                (_rate("headrace_topic_out_records_total", "instance"), "{{instance}} out"),
            ),
            "cps",
        ),
        Panel(
            "Produce duration",
            (
                (
                    _quantile("headrace_request_duration_seconds", q="0.5", more=', api="Produce"'),
                    "median",
                ),
                (_quantile("headrace_request_duration_seconds", more=', api="Produce"'), "99 %"),
            ),
            "s",
        ),
        Panel(
            "Errors",
            ((_rate("headrace_request_errors_total", "api, error"), "{{api}} {{error}}"),),
            "cps",
        ),
        Panel(
            "Requests", ((_rate("headrace_requests_total", "api") + " > 0", "{{api}}"),), "reqps"
        ),
        Panel(
            "Sync and event loop, 99 %",
            (
                (
                    _quantile("headrace_storage_sync_duration_seconds", "instance"),
                    "{{instance}} sync",
                ),
                (_quantile("headrace_loop_lag_seconds", "instance"), "{{instance}} loop"),
            ),
            "s",
        ),
        Panel(
            "CPU",
            ((f"rate(process_cpu_seconds_total{{{_BROKER}}}[5m])", "{{instance}}"),),
            "percentunit",
        ),
        Panel(
            "Memory", ((f"process_resident_memory_bytes{{{_BROKER}}}", "{{instance}}"),), "bytes"
        ),
        Panel(
            "Connections by software",
            (
                (
                    f"sum by (software, version) (headrace_client_connections{{{_BROKER}}})",
                    "{{software}} {{version}}",
                ),
            ),
        ),
        Panel(
            "Logins and throttling",
            (
                (_rate("headrace_logins_total", "mechanism, outcome"), "{{mechanism}} {{outcome}}"),
                (_rate("headrace_throttled_requests_total", "quota"), "throttled by {{quota}}"),
            ),
            "cps",
        ),
    ),
)

TOPIC: Final = Dashboard(
    "topic",
    "topics",
    {"broker": _INSTANCES, "topic": "label_values(headrace_topic_in_bytes_total, topic)"},
    (
        _stat("Topics", f"max(headrace_topics{{{_BROKER}}})"),
        _stat("Partitions", f"max(headrace_partitions{{{_BROKER}}})"),
        _stat("Size", f"sum(headrace_topic_size_bytes{{{_BROKER}{_TOPIC}}})", "bytes"),
        Panel(
            "Records in",
            ((_rate("headrace_topic_in_records_total", "topic", _TOPIC), "{{topic}}"),),
            "cps",
        ),
        Panel(
            "Records out",
            ((_rate("headrace_topic_out_records_total", "topic", _TOPIC), "{{topic}}"),),
            "cps",
        ),
        Panel(
            "Bytes in",
            ((_rate("headrace_topic_in_bytes_total", "topic", _TOPIC), "{{topic}}"),),
            "Bps",
        ),
        Panel(
            "Bytes out",
            ((_rate("headrace_topic_out_bytes_total", "topic", _TOPIC), "{{topic}}"),),
            "Bps",
        ),
        Panel(
            "Size",
            ((f"sum by (topic) (headrace_topic_size_bytes{{{_BROKER}{_TOPIC}}})", "{{topic}}"),),
            "bytes",
        ),
        Panel(
            "Lag of groups",
            (
                (
                    f"sum by (group, topic) (headrace_group_lag_records{{{_BROKER}{_TOPIC}}})",
                    "{{group}} {{topic}}",
                ),
            ),
        ),
    ),
)

GROUP: Final = Dashboard(
    "group",
    "consumer groups",
    {"broker": _INSTANCES, "group": "label_values(headrace_group_lag_records, group)"},
    (
        _stat("Groups", f"sum(headrace_groups{{{_BROKER}}})"),
        _stat("Members", f"sum(headrace_group_members{{{_BROKER}}})"),
        _stat(
            "Largest lag", f"max(headrace_group_lag_seconds{{{_BROKER}{_GROUP}}})", "s", alarm=300
        ),
        Panel(
            "Lag in records",
            (
                (
                    f"sum by (group, topic) (headrace_group_lag_records{{{_BROKER}{_GROUP}}})",
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Lag in seconds",
            (
                (
                    f"max by (group, topic) (headrace_group_lag_seconds{{{_BROKER}{_GROUP}}})",
                    "{{group}} {{topic}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Rebalances",
            ((_rate("headrace_group_rebalances_total", "instance"), "{{instance}}"),),
            "cps",
        ),
        Panel(
            "Commits", ((_rate("headrace_group_commits_total", "instance"), "{{instance}}"),), "cps"
        ),
    ),
)

QUEUE: Final = Dashboard(
    "queue",
    "queues",
    {"broker": _INSTANCES, "group": "label_values(headrace_share_group_lag_records, group)"},
    (
        _stat("Unfinished", f"sum(headrace_share_group_lag_records{{{_BROKER}{_GROUP}}})"),
        _stat("In flight", f"sum(headrace_queue_in_flight_records{{{_BROKER}{_GROUP}}})"),
        _stat("Oldest", f"max(headrace_queue_oldest_seconds{{{_BROKER}{_GROUP}}})", "s", alarm=300),
        _stat("Delayed", f"sum(headrace_delayed_pending{{{_BROKER}}})"),
        _stat("Half messages", f"sum(headrace_half_pending{{{_BROKER}}})"),
        Panel(
            "Unfinished",
            (
                (
                    _by_queue("headrace_share_group_lag_records"),
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "In flight",
            (
                (
                    _by_queue("headrace_queue_in_flight_records"),
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Deliveries",
            (
                (
                    _rate("headrace_queue_delivered_records_total", "group", _GROUP),
                    "{{group}} delivered",
                ),
                (
                    _rate("headrace_queue_acknowledged_records_total", "group", _GROUP),
                    "{{group}} acknowledged",
                ),
            ),
            "cps",
        ),
        Panel(
            "Failures",
            (
                (
                    _rate("headrace_queue_released_records_total", "group", _GROUP),
                    "{{group}} released",
                ),
                (
                    _rate("headrace_queue_timed_out_records_total", "group", _GROUP),
                    "{{group}} timed out",
                ),
                (
                    _rate("headrace_queue_given_up_records_total", "group", _GROUP),
                    "{{group}} given up",
                ),
            ),
            "cps",
        ),
        Panel(
            "Dead letters",
            (
                (_rate("headrace_dead_letters_copied_total", "instance"), "{{instance}} copied"),
                (_rate("headrace_dead_letters_failed_total", "instance"), "{{instance}} failed"),
                (
                    _rate("headrace_dead_letters_given_up_total", "instance"),
                    "{{instance}} given up",
                ),
            ),
            "cps",
        ),
        Panel(
            "Lateness of delayed records, 99 %",
            ((_quantile("headrace_delayed_lateness_seconds", "instance"), "{{instance}}"),),
            "s",
        ),
    ),
)

CLUSTER: Final = Dashboard(
    "cluster",
    "cluster and BookKeeper",
    {"broker": _INSTANCES},
    (
        _stat("Brokers", f"count(headrace_build_info{{{_BROKER}}})"),
        _stat(
            "Brokers that cannot write",
            f"count(headrace_can_write{{{_BROKER}}} == 0) or vector(0)",
            alarm=1,
        ),
        _stat(
            "Under-replicated", f"sum(headrace_partitions_under_replicated{{{_BROKER}}})", alarm=1
        ),
        _stat("Missing copies", f"sum(headrace_copies_missing{{{_BROKER}}})", alarm=1),
        _stat("Writable bookies", f'min(headrace_bookies{{{_BROKER}, state="writable"}})'),
        _stat("Lost facts", f"max(headrace_facts_lost{{{_BROKER}}})", alarm=1),
        Panel(
            "Partitions by broker", ((f"headrace_partitions_owned{{{_BROKER}}}", "{{instance}}"),)
        ),
        Panel("Bookies", ((f"max by (state) (headrace_bookies{{{_BROKER}}})", "{{state}}"),)),
        Panel(
            "Damaged copies",
            ((_rate("headrace_copies_damaged_total", "bookie"), "{{bookie}}"),),
            "cps",
        ),
        Panel(
            "ZooKeeper session",
            ((f"headrace_zookeeper_session{{{_BROKER}}} == 1", "{{instance}} {{state}}"),),
        ),
        Panel("Entry cache", ((f"headrace_cache_bytes{{{_BROKER}}}", "{{instance}}"),), "bytes"),
        Panel(
            "Object storage",
            (
                (_rate("headrace_tier_offload_bytes_total", "instance"), "{{instance}} offloaded"),
                (_rate("headrace_tier_cold_read_bytes_total", "instance"), "{{instance}} read"),
            ),
            "Bps",
        ),
    ),
)

DASHBOARDS: Final = (OVERVIEW, TOPIC, GROUP, QUEUE, CLUSTER)
