"""Archives a topic into two tables, maintains and reconciles one: bootstrap, topic, warehouse and
catalog on the command line. A process of its own, because Java gets its environment at its start.
"""

import json
import sys

from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if __name__ == "__main__":
    bootstrap, topic, place, kept_in = sys.argv[1:]
    warehouse = Warehouse.at(place, kept_in=kept_in)
    spark = make_session(
        SessionConfig("local[2]", warehouse=warehouse, memory_mb=768, short_run=True)
    )
    config = ArchiveConfig(bootstrap, topic, warehouse, round_records_max=150, is_daily=True)
    report = run_archive(config, spark=spark)
    latest = ArchiveConfig(bootstrap, topic, warehouse, "headrace.latest", mode="upsert")
    run_archive(latest, spark=spark)
    maintained = run_maintain(MaintainConfig(warehouse, report.table, files_min=2), spark=spark)
    proof = run_reconcile(ReconcileConfig(bootstrap, topic, report.table), spark=spark)
    print(json.dumps([report.record_count, maintained.files_added, list(proof.problems)]))
    spark.stop()
