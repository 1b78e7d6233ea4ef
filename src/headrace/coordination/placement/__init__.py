"""Partition placement on brokers."""
