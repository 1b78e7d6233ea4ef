"""Object storage beneath a ledger store.

`tier` is the log's interface, `tiered_store` implements it; `object_format` defines what is stored;
`blob_store` accesses the object storage.
"""
