"""Client quotas: whom one concerns, and how a rate is kept."""
