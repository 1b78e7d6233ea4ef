"""A stream to be killed. Arguments: bootstrap, source, target, checkpoint, and JSON: options of the
source, and the number of parts that rows are shuffled into (0: not). Prints each batch."""

import json
import sys

from headrace.pipeline.restarts import RestartPolicy, with_restarts
from headrace.pipeline.session import SessionConfig, make_session

if __name__ == "__main__":
    bootstrap, source, target, checkpoint, text = sys.argv[1:]
    options, parts = json.loads(text)
    spark = make_session(SessionConfig("local[2]", memory_mb=512, short_run=True))

    def run() -> None:
        frame = spark.readStream.format("headrace").options(**options)
        frame = frame.option("bootstrap.servers", bootstrap).option("subscribe", source).load()
        frame = frame.select("key", "value")
        query = (
            (frame.repartition(parts) if parts else frame).writeStream.format("headrace")
            .option("bootstrap.servers", bootstrap).option("topic", target)
            .option("checkpointLocation", checkpoint).start()
        )  # fmt: skip
        seen = None
        try:
            while not query.awaitTermination(0.2):
                progress = query.lastProgress
                if progress and progress["numInputRows"] and progress["batchId"] != seen:
                    seen = progress["batchId"]
                    print(seen, flush=True)
        finally:
            query.stop()

    with_restarts(
        run, "The stream", RestartPolicy(restarts_max=1_000, delay_ms=100, delay_ms_max=500)
    )
