"""Logs beside a partition's own, and the machines over them: one host for every kind."""
