"""Delayed records and half messages of the partitions that a broker serves."""
