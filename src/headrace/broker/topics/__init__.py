"""Topics and their partitions on one broker: creation, configuration, lookup, deletion."""
