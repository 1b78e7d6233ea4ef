"""Hosts of the pure coordinators: their logs, shards, calls to peers and settings."""
