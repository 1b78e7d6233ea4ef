"""RocketMQ's official client for Python, as a program of an environment of its own."""
