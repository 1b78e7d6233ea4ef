"""Lets Spark find the data source `headrace-batches` without being told, as `pyspark_headrace` does
for `headrace`: Spark takes one data source of each module."""

from headrace.pipeline.batches_source import BatchesDataSource as DefaultSource

__all__ = ["DefaultSource"]
