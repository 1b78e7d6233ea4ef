"""PySpark over topics: reads, writes, archives and verifies what a broker holds.

Invariants: only the CLI imports this package, and lazily. It uses ordinary Kafka clients and knows
no broker internals. Modules that Spark's Python workers import stay light, because each worker
pays for every import: confluent_kafka and pyarrow are imported inside functions.

    jars, session            pinned jars, one quiet SparkSession
    options, planning        what to read and how it is split: pure functions
    position                 offsets and topic ids, as stored in checkpoints
    cluster                  watermarks, topic ids
    source, stream_reader    the data source `headrace`: planning of batches and streams
    tasks, fetch             reading one offset range in a worker
    columns, arrow           records in bounded batches; raw_headers: keys that are not UTF-8
    streams                  streams that read the available data and end
    delivery, sink           exactly-once writes of rows to topics
    catalog, jobs/*          Iceberg tables: archive, maintain, reconcile
    fingerprint              a hash over every field of a record, as SQL
    demo/*                   `make demo`
"""
