"""Lets Spark find the data source `headrace-journal` without being told, as `pyspark_headrace` does
for `headrace`: Spark takes one data source of each module."""

from headrace.pipeline.journal_source import JournalDataSource as DefaultSource

__all__ = ["DefaultSource"]
