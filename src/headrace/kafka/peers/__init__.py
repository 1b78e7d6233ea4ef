"""Calls to other brokers over Kafka's protocol."""
