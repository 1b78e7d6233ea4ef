"""Share groups: queues over partitions, their state beside the data, dead letters."""
