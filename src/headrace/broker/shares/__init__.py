"""Share groups: queues over partitions, with their state beside the data, and dead letters."""
