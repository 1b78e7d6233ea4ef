"""Reconciliation as a run of its own, with a Spark session of its own.

Rules of the room: knows the job and how a session is made; what is compared is `jobs.reconcile`'s.
"""

from __future__ import annotations

from pathlib import Path

from headrace.pipeline.catalog import TableName
from headrace.pipeline.jobs.reconcile import ReconcileConfig, ReconcileReport, run_reconcile
from headrace.pipeline.session import SessionConfig, Warehouse, make_session

__all__ = ["ReconcileConfig", "ReconcileReport", "prove"]


def prove(config: ReconcileConfig, warehouse: str, master: str) -> ReconcileReport:
    """Compare the topic with the table in the warehouse's folder.

    Raises JavaMissing, JarUnavailable, JarCorrupt, OptionInvalid.
    """
    place = Warehouse(Path(warehouse), TableName.parse(config.table).catalog)
    spark = make_session(SessionConfig(master, warehouse=place, short_run=True))
    try:
        return run_reconcile(config, spark=spark)
    finally:
        spark.stop()
