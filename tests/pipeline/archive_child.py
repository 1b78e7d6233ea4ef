"""An archive to be killed: bootstrap, topic, warehouse, table on the command line."""

import sys

from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if __name__ == "__main__":
    bootstrap, topic, folder, table = sys.argv[1:]
    config = ArchiveConfig(bootstrap, topic, folder, table, round_records_max=3_000)
    spark = make_session(
        SessionConfig("local[2]", warehouse=Warehouse(config.place.folder), short_run=True)
    )
    run_archive(config, spark=spark, on_round=lambda each: print(each.number, flush=True))
