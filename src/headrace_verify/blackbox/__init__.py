"""`headrace verify blackbox`: real brokers, real clients, faults from outside, and a judge."""
