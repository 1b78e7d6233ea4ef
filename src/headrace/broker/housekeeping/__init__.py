"""What runs beside the traffic: sweeps, compaction, tiers, replication, audits, repair."""
