"""Object storage beneath a ledger store: `blob_store` speaks to it, `tiered_store` uses it."""
