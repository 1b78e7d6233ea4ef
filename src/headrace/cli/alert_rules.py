"""Prometheus alert rules for a broker's metrics.

Invariants: a value; every expression names metrics of `headrace.http.metric_rows`, and every rule
links to its section of the runbook (docs/RUNBOOK.md), which a test checks.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

RUNBOOK: Final = "docs/RUNBOOK.md"


class Rule(NamedTuple):
    """One alert."""

    name: str
    expression: str
    for_: str
    severity: str
    summary: str


RULES: Final = (
    Rule("HeadraceDown", 'up{job=~".*headrace.*"} == 0', "2m", "critical",
         "The broker {{ $labels.instance }} does not respond to scrapes."),
    Rule("HeadraceProblems", "headrace_problems > 0", "5m", "warning",
         "{{ $labels.instance }} cannot serve {{ $value }} things as configured."),
    Rule("HeadracePartitionsOffline", "headrace_partitions_offline > 0", "2m", "critical",
         "{{ $value }} partitions are served by no broker."),
    Rule("HeadracePartitionsDamaged", "headrace_partitions_damaged > 0", "1m", "critical",
         "{{ $value }} partitions of {{ $labels.instance }} are damaged and not served."),
    Rule("HeadraceDiskFull", "headrace_disk_is_full > 0", "1m", "critical",
         "{{ $labels.instance }} refuses records because its disk is full."),
    Rule("HeadraceDiskFillsUp",
         "predict_linear(headrace_disk_free_bytes[6h], 24 * 3600) < headrace_disk_reserve_bytes"
         " and headrace_disk_free_bytes / headrace_disk_total_bytes < 0.3", "30m", "warning",
         "The disk of {{ $labels.instance }} will be full within a day."),
    Rule("HeadraceStorageErrors", "increase(headrace_storage_errors_total[10m]) > 0", "0m",
         "critical", "Writes or syncs of {{ $labels.instance }} fail."),
    Rule("HeadraceSyncSlow",
         "histogram_quantile(0.99, sum by (instance, le)"
         " (rate(headrace_storage_sync_duration_seconds_bucket[5m]))) > 0.5", "10m", "warning",
         "Syncs of {{ $labels.instance }} take {{ $value | humanizeDuration }}, and"
         " acknowledgements wait."),
    Rule("HeadraceLoopSlow",
         "histogram_quantile(0.99, sum by (instance, le)"
         " (rate(headrace_loop_lag_seconds_bucket[5m]))) > 0.25", "10m", "warning",
         "The event loop of {{ $labels.instance }} lags by {{ $value | humanizeDuration }}:"
         " it is overloaded."),
    Rule("HeadraceErrors",
         "sum by (instance, api, error) (rate(headrace_request_errors_total{error=~"
         '"UNKNOWN_SERVER_ERROR|KAFKA_STORAGE_ERROR|CORRUPT_MESSAGE|POLICY_VIOLATION"}[5m])) > 0',
         "5m", "warning", "{{ $labels.api }} requests fail with {{ $labels.error }}."),
    Rule("HeadraceGroupLag", "headrace_group_lag_seconds > 600", "10m", "warning",
         "Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in"
         " {{ $labels.topic }}."),
    Rule("HeadraceQueueOld", "headrace_queue_oldest_seconds > 600", "10m", "warning",
         "The oldest message of {{ $labels.group }} in {{ $labels.topic }} has waited"
         " {{ $value | humanizeDuration }}."),
    Rule("HeadraceDeadLettersFail", "increase(headrace_dead_letters_failed_total[10m]) > 0", "5m",
         "warning", "Records cannot be copied to dead letter topics on {{ $labels.instance }}."),
    Rule("HeadraceDeliveriesLate", "headrace_delayed_next_due_seconds < -60 and"
         " headrace_delayed_pending > 0", "5m", "warning",
         "Delayed records of {{ $labels.instance }} are late."),
    Rule("HeadraceLoginsFail",
         'sum by (instance) (rate(headrace_logins_total{outcome="failure"}[5m])) > 1', "5m",
         "warning", "{{ $value | humanize }} logins per second fail on {{ $labels.instance }}."),
    Rule("HeadraceCertificateExpires", "headrace_certificate_expires_seconds < 14 * 24 * 3600",
         "1h", "warning", "The certificate of listener {{ $labels.listener }}"
         "{{ with $labels.server_name }} for {{ . }}{{ end }} expires soon."),
    Rule("HeadraceTrustedCaExpires", "headrace_trusted_ca_expires_seconds < 14 * 24 * 3600",
         "1h", "warning", "A CA that listener {{ $labels.listener }} trusts expires soon."),
    Rule("HeadraceCannotWrite", "headrace_can_write == 0", "1m", "critical",
         "{{ $labels.instance }} has not enough bookies to write."),
    Rule("HeadraceUnderReplicated", "headrace_partitions_under_replicated > 0", "30m", "warning",
         "{{ $value }} partitions lack copies of entries."),
    Rule("HeadraceCopiesDamaged", "increase(headrace_copies_damaged_total[1h]) > 0", "0m",
         "warning", "Bookie {{ $labels.bookie }} returns damaged entries: look at its disk."),
    Rule("HeadraceFactsLost", "headrace_facts_lost > 0", "5m", "critical",
         "{{ $value }} chains or topics were lost from the metadata."),
    Rule("HeadraceTierAway", "headrace_tier_away > 0", "15m", "warning",
         "Object storage fails for {{ $labels.instance }}."),
    Rule("HeadraceTableFilesMissing", "headrace_tier_table_missing > 0", "5m", "critical",
         "{{ $value }} ledgers lack files or tags of their topics' tables."),
    Rule("HeadraceTablesUnread", "headrace_tier_table_unread > 0", "5m", "warning",
         "{{ $value }} tables that have the only copy of records cannot be read."),
)  # fmt: skip


def anchor(rule: Rule) -> str:
    """The section of the runbook: its heading is the name of the alert."""
    return rule.name.lower()


def rules_file(runbook: str = RUNBOOK) -> str:
    """The rules as Prometheus reads them: JSON, which is YAML. `runbook`: where its page is."""
    rules = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": rule.for_,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "runbook_url": f"{runbook}#{anchor(rule)}"},
        }
        for rule in RULES
    ]
    return json.dumps({"groups": [{"name": "headrace", "rules": rules}]}, indent=2) + "\n"
