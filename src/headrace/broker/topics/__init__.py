"""Topics and their partitions on one broker: making, configuring, finding, deleting."""
