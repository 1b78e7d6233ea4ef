"""Queues: share groups with Kafka's own tool, and receiving over HTTP.

Invariants: a run fills its own topic before anything is measured. Messages have keys in turn, so
that every run reads the same; broker CPU covers only receiving and acknowledging.
"""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Producer

from headrace_bench import java_tools
from headrace_bench.peers import cpu_s
from headrace_bench.processes import SystemFailed
from headrace_bench.systems.share_groups import configure

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from headrace_bench.peers import Peer

Figures = dict[str, float]
KEYS = 100_000
MESSAGE_BYTES = 100
PER_RECEIVE = 100
HTTP_TIMEOUT_S = 60.0


class Queue:
    """A topic that is filled for one run: `with Queue(...) as queue`."""

    def __init__(self, peer: Peer, topic: AbstractContextManager[str], messages: int) -> None:
        self._peer = peer
        self._topic = topic
        self._messages = messages
        self._name = ""

    def __enter__(self) -> Self:
        self._name = self._topic.__enter__()
        try:
            fill(self._peer.bootstrap, self._name, self._messages)
        except BaseException:
            self._topic.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._topic.__exit__(None, None, None)

    def share(self, group: str, config: dict[str, str]) -> Figures:
        """Receive and acknowledge everything with ShareConsumerPerformance."""
        peer, name = self._peer, f"{self._name}-{group}"
        configure(peer.bootstrap, name, {"share.auto.offset.reset": "earliest", **config})
        before = cpu_s(peer.pid)
        rate = java_tools.share_consumer_performance(
            peer.bootstrap, self._name, name, self._messages
        )
        used = cpu_s(peer.pid) - before
        return {"messages_per_s": rate, "cpu_us_per_message": used / self._messages * 1e6}

    def share_by_key(self) -> Figures:
        """Unordered, then in key order."""
        unordered = self.share("unordered", {})
        ordered = self.share("by-key", {"headrace.share.key.order": "true"})
        return {
            "messages_per_s": ordered["messages_per_s"],
            "by_key_rate": ordered["messages_per_s"] / unordered["messages_per_s"],
            "by_key_cpu_us": ordered["cpu_us_per_message"],
        }

    def over_http(self, clients: int) -> Figures:
        """Receive and acknowledge everything over HTTP, in batches of PER_RECEIVE."""
        peer, group = self._peer, f"{self._name}-http"
        configure(peer.bootstrap, group, {"share.auto.offset.reset": "earliest"})
        path = f"/v1/queues/{self._name}/{group}"
        with ProcessPoolExecutor(clients) as pool:
            list(pool.map(abs, range(clients)))  # the processes have started
            before, began = cpu_s(peer.pid), time.perf_counter()
            count = sum(pool.map(empty, [peer.http] * clients, [path] * clients))
            took, used = time.perf_counter() - began, cpu_s(peer.pid) - before
        if count != self._messages:
            raise SystemFailed(f"only {count} of {self._messages} messages were received")
        return {"messages_per_s": count / took, "cpu_us_per_message": used / count * 1e6}


def fill(bootstrap: str, topic: str, messages: int) -> None:
    """Write messages, keys in turn. Raises SystemFailed."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20}
    settings |= {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings)
    value = bytes(MESSAGE_BYTES)
    for number in range(messages):
        producer.produce(topic, value, key=b"k%d" % (number % KEYS))
        if number % 10_000 == 0:
            producer.poll(0)
    if left := producer.flush(120):
        raise SystemFailed(f"{left} of {messages} messages could not be written")


def empty(address: str, path: str) -> int:
    """Receive and acknowledge until nothing is left; returns the number of messages."""
    connection = http.client.HTTPConnection(address, timeout=HTTP_TIMEOUT_S)
    count = 0
    while found := _ask(connection, f"{path}/receive", {"max": PER_RECEIVE})["messages"]:
        settle = {"ack": [message["receipt"] for message in found]}
        answer = _ask(connection, f"{path}/settle", settle)
        if not all(result["ok"] for result in answer["results"]):
            raise SystemFailed(f"an acknowledgement was rejected: {answer['results']}"[:1000])
        count += len(found)
    connection.close()
    return count


def _ask(connection: http.client.HTTPConnection, path: str, body: object) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise SystemFailed(f"{path} returned {answer.status}: {text[:500]!r}")
    return json.loads(text)
