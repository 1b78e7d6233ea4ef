"""Topics as tables: PySpark reads, writes, archives and proves what a broker holds.

Rules of the room: imported by nobody but the CLI, and lazily. It sees what any Kafka client
sees, nothing more: ordinary clients, no broker internals. Modules that Spark's Python workers
import stay light (a worker pays for every import): confluent_kafka and pyarrow are imported
inside functions.

    java, jars, session      a JVM, pinned jars, one quiet SparkSession
    options, planning        what to read, and how it is cut: pure functions
    cluster, fetch, source   watermarks, records to Arrow, the data source `headrace`
    delivery, sink           rows to a topic, once per micro-batch
    catalog, jobs/*          Iceberg tables: archive, maintain, reconcile
    demo/*                   what `make demo` shows
"""
