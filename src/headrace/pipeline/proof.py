"""Reconciliation as a run of its own, with a Spark session of its own.

Invariants: knows the job and how a session is made; what is compared is `jobs.reconcile`'s.
"""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.jobs.reconcile import ReconcileConfig, ReconcileReport, run_reconcile
from headrace.pipeline.session import SessionConfig, Warehouse, make_session

__all__ = ["ReconcileConfig", "ReconcileReport", "prove"]


def prove(config: ReconcileConfig, warehouse: str, master: str) -> ReconcileReport:
    """Compare the topic with the table in the warehouse's folder.

    Raises JavaMissing, JarUnavailable, JarCorrupt, and OptionInvalid where there is no such table.
    """
    table = TableName.parse(config.table)
    place = Warehouse(Path(warehouse), table.catalog)
    load_table(place, table)
    spark = make_session(SessionConfig(master, warehouse=place, short_run=True))
    try:
        return run_reconcile(config, spark=spark)
    finally:
        spark.stop()
