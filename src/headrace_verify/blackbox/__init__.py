"""`headrace verify blackbox`: real brokers and clients, faults from outside, and history
checkers."""
