"""Object storage beneath a ledger store.

`tier` is what the log asks for and `tiered_store` does it; `object_format` is what is stored;
`blob_store` speaks to the object storage.
"""
