"""Clients in other languages: programs that a worker starts, controls and records."""
