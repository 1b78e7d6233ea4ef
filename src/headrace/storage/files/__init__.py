"""Ledgers in local files: a shared write-ahead log and one segment per ledger."""

from headrace.storage.files.store import FileLedgerStore

__all__ = ["FileLedgerStore"]
