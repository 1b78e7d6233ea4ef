"""RocketMQ's protocol at a steady rate: see `headrace_bench.systems.paced`."""

from __future__ import annotations

from headrace_bench.rocketmq import IN_FLIGHT
from headrace_bench.rocketmq.client import Client, Consumer


class Channel:
    """A producer, or a consumer once it receives."""

    def __init__(self, port: int, name: str) -> None:
        self._port, self._name = port, name
        self._producer: Client | None = None
        self._consumer: Consumer | None = None

    def send(self, value: bytes) -> None:
        """See paced.Channel."""
        if self._producer is None:
            self._producer = Client(self._port, "paced-producer", self._name)
        while self._producer.open_count >= IN_FLIGHT:  # a server takes so many calls at once
            self._producer.poll(1.0)
        self._producer.prepare(value)
        self._producer.send()
        self._producer.poll(0)

    def finish(self) -> None:
        """See paced.Channel."""
        while self._producer is not None and self._producer.open_count:
            self._producer.poll(1.0)

    def receive(self) -> list[bytes]:
        """See paced.Channel."""
        if self._consumer is None:
            self._consumer = Consumer(self._port, self._name)
        return self._consumer.step(1.0)[1]


def open_channel(port: int, name: str) -> Channel:
    """See paced."""
    return Channel(port, name)
