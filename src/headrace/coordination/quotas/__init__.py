"""Client quotas: entities, and rate limiting."""
