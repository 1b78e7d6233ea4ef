"""Partition ownership across brokers: facts, claims, hand-overs, balancing."""
