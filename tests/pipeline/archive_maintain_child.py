"""Archives a topic into its own table and does all that maintenance may ever do to it: bootstrap,
topic, warehouse and catalog on the command line. A process of its own, because Java gets its
environment at its start.
"""

import sys

from headrace.pipeline.catalog import TableName
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if __name__ == "__main__":
    bootstrap, topic, place, kept_in = sys.argv[1:]
    warehouse = Warehouse.at(place, kept_in=kept_in)
    spark = make_session(
        SessionConfig("local[2]", warehouse=warehouse, memory_mb=768, short_run=True)
    )
    run_archive(ArchiveConfig(bootstrap, topic, warehouse, is_daily=True), spark=spark)
    table = TableName.of_topic(topic).in_spark
    run_maintain(
        MaintainConfig(warehouse, table, files_min=1, keep_snapshots=1, snapshot_age_hours=0),
        spark=spark,
    )
    spark.stop()
