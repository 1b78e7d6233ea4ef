"""Runs a reconciliation in its own Spark session.

Invariants: knows the job and how to create a session; `jobs.reconcile` does the comparison.
"""

from __future__ import annotations

from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.jobs.reconcile import ReconcileConfig, ReconcileReport, run_reconcile
from headrace.pipeline.session import SessionConfig, given_or_own
from headrace.pipeline.warehouse import Place, Warehouse

__all__ = ["ReconcileConfig", "ReconcileReport", "prove"]


def prove(config: ReconcileConfig, warehouse: Place, master: str) -> ReconcileReport:
    """Compare the topic with the table in the warehouse.

    Raises JavaMissing, JarUnavailable, JarCorrupt, and OptionInvalid if the table does not exist.
    """
    table = TableName.parse(config.table)
    place = Warehouse.at(warehouse, table.catalog)
    load_table(place, table)
    settings = SessionConfig(master, warehouse=place, short_run=True)
    with given_or_own(None, settings) as spark:
        return run_reconcile(config, spark=spark)
