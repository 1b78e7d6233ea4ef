"""Background work: garbage collection, compaction, tiering, replication, audits, repair."""
