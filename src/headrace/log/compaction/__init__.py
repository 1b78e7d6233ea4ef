"""Log compaction: what is retained, the rounds of a partition, and where they run."""
