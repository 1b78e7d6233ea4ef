"""Topics as tables: PySpark reads, writes, archives and proves what a broker holds.

Invariants: imported by the CLI alone, and lazily. It sees what any Kafka client
sees, nothing more: ordinary clients, no broker internals. Modules that Spark's Python workers
import stay light (a worker pays for every import): confluent_kafka and pyarrow are imported
inside functions.

    jars, session            pinned jars, one quiet SparkSession
    options, planning        what to read, and how it is cut: pure functions
    position                 offsets and the ids of their topics, as checkpoints store them
    cluster                  watermarks, topic ids
    source, stream_reader    the data source `headrace`: planning of batches and streams
    tasks, fetch             one range of offsets, read in a worker
    columns, arrow           its records in bounded batches; raw_headers: keys that are not UTF-8
    streams                  streams that read what is there, and end
    delivery, sink           rows to a topic, once per micro-batch
    catalog, jobs/*          Iceberg tables: archive, maintain, reconcile
    fingerprint              the hash of a record's every field, as SQL
    demo/*                   what `make demo` shows
"""
