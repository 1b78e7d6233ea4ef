"""Hosts of the pure coordinators: their logs, shards, peer calls and settings."""
