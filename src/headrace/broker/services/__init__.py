"""What every face offers in its own protocol: services over topics, groups and logs."""
