"""What the service does with a schema registry, and what is done by hand, in a catalog: bootstrap,
topics and place in JSON on the command line. A process of its own, because Java gets its
environment at its start.

Prints, as JSON: the rows of the typed topic and of its side table, the rows of the compacted topic
or why it has none, and what maintenance and reconciliation of the other topic say.
"""

import json
import sys
from pathlib import Path

from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    bootstrap, topic = given["bootstrap"], given["topic"]
    warehouse = Warehouse.at(given["place"], kept_in=given["kept_in"])
    spark = make_session(
        SessionConfig("local[2]", warehouse=warehouse, memory_mb=768, short_run=True)
    )

    def rows(place: TableName) -> list[dict[str, object]]:
        found = load_table(warehouse, place).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["offset"])

    typed = TableName.of_topic(given["typed"])
    for version in given["schemas"]:
        schema = Path(given["folder"]) / "schema.json"
        schema.write_text(json.dumps(version))
        values = {"valueFormat": "json", "valueSchemaFile": str(schema)}
        for _ in range(2):  # the second finds nothing
            run_archive(
                ArchiveConfig(
                    bootstrap, given["typed"], warehouse, typed.in_spark,
                    values=values, is_daily=True, round_records_max=2,
                ),
                spark=spark,
            )  # fmt: skip
    side = typed._replace(namespace="headrace_undecodable")
    kept = TableName.of_topic(given["compacted"])
    try:
        run_archive(
            ArchiveConfig(
                bootstrap, given["compacted"], warehouse, kept.in_spark,
                mode="upsert", round_records_max=70,
            ),
            spark=spark,
        )  # fmt: skip
        latest = [
            [row["partition"], row["key"].decode(), row["value"].decode()] for row in rows(kept)
        ]
    except OptionInvalid as error:
        latest = str(error)
    table = TableName.of_topic(topic).in_spark
    maintained = run_maintain(MaintainConfig(warehouse, table, files_min=2), spark=spark)
    proof = run_reconcile(ReconcileConfig(bootstrap, topic, table), spark=spark)
    print(
        json.dumps(
            {
                "typed": [[row["offset"], row["value"]] for row in rows(typed)],
                "side": [[row["offset"], row["value"].decode()] for row in rows(side)],
                "latest": latest,
                "files_added": maintained.files_added,
                "is_catalogs_own": maintained.is_catalogs_own,
                "archived": proof.archived_count,
                "problems": list(proof.problems),
            }
        )
    )
    spark.stop()
