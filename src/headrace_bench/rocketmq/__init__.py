"""Loads of RocketMQ's gRPC protocol, for Headrace and for RocketMQ."""

IN_FLIGHT = 64
"""Sends of one client, at most."""
BATCH = 32
"""Messages of a receive, by default in all clients."""
QUEUES = 4
"""Of each topic."""
POLL_S = 20
"""How long a receive waits, by default in all clients."""
NORMAL, DELAY, LITE = "normal", "delay", "lite"
"""Message types of topics."""


def group_of(topic: str) -> str:
    """The group of a topic's consumers."""
    return f"group-{topic}"
