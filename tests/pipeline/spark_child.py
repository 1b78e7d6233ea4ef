"""Spark on a warehouse for a whole test: place and catalog on the command line, a request a line on
standard input, its rows or its error as JSON on standard output. A process of its own, because Java
gets its environment at its start.

Requests: {"sql": statement}, or {"archive": [bootstrap, topic]}, which archives a topic into its
own table and does all that maintenance may ever do to it.
"""

import json
import sys

from headrace.pipeline.catalog import TableName
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse


def sql(statement: str) -> list[dict[str, object]]:
    return [row.asDict() for row in spark.sql(statement).collect()]


def archive(bootstrap: str, topic: str) -> list[dict[str, object]]:
    run_archive(ArchiveConfig(bootstrap, topic, warehouse, is_daily=True), spark=spark)
    table = TableName.of_topic(topic).in_spark
    run_maintain(
        MaintainConfig(warehouse, table, files_min=1, keep_snapshots=1, snapshot_age_hours=0),
        spark=spark,
    )
    return []


if __name__ == "__main__":
    place, kept_in = sys.argv[1:]
    warehouse = Warehouse.at(place, kept_in=kept_in)
    spark = make_session(
        SessionConfig("local[2]", warehouse=warehouse, memory_mb=768, short_run=True)
    )
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            rows = sql(asked["sql"]) if "sql" in asked else archive(*asked["archive"])
            found: dict[str, object] = {"rows": rows}
        except Exception as error:  # whatever Spark raises is the answer
            found = {"error": str(error)}
        print(json.dumps(found, default=str), flush=True)
    spark.stop()
