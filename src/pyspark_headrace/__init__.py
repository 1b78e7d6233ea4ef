"""Lets Spark find the data source `headrace` without being told.

Spark 4 imports every installed module whose name begins with `pyspark_` when a session first uses a
Python data source, and registers the class `DefaultSource` of each.
"""

from headrace.pipeline.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
