"""Clients in other languages: programs that a worker starts, feeds and writes the history of."""
