"""Spark SQL on a warehouse, as another engine's: place and catalog on the command line, a statement
a line on standard input, its rows or its error as JSON on standard output. A process of its own,
because Java gets its environment at its start.
"""

import json
import sys

from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if __name__ == "__main__":
    place, kept_in = sys.argv[1:]
    warehouse = Warehouse.at(place, kept_in=kept_in)
    spark = make_session(
        SessionConfig("local[2]", warehouse=warehouse, memory_mb=768, short_run=True)
    )
    for line in sys.stdin:
        try:
            found = {"rows": [row.asDict() for row in spark.sql(line).collect()]}
        except Exception as error:  # whatever Spark raises is the answer
            found = {"error": str(error)}
        print(json.dumps(found, default=str), flush=True)
    spark.stop()
