"""Receive and settle over HTTP in batches of 100: rate, and the broker's CPU a message.

Run: python benchmarks/http_queue.py [--messages 200000] [--clients 2] [--rounds 3]
Starts a broker of its own in a temporary folder; prints one JSON line a round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

BATCH = 100
TOPIC, GROUP = "jobs", "workers"


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> Any:
    """The answer's JSON."""
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)


def consume(address: str) -> int:
    """Receive and acknowledge until nothing is left."""
    connection = http.client.HTTPConnection(address, timeout=60)
    path = f"/v1/queues/{TOPIC}/{GROUP}"
    count = 0
    while True:
        found = ask(connection, "POST", f"{path}/receive", {"max": BATCH})["messages"]
        if not found:
            return count
        settle = {"ack": [message["receipt"] for message in found]}
        answer = ask(connection, "POST", f"{path}/settle", settle)
        assert all(result["ok"] for result in answer["results"])
        count += len(found)


def cpu_s(address: str) -> float:
    """The broker's CPU so far."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    found = re.search(r"^headrace_process_cpu_seconds_total ([0-9.e+]+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def fill(connection: http.client.HTTPConnection, messages: int) -> None:
    """Write the messages."""
    records = [{"value": "x" * 100, "key": f"k{n}"} for n in range(1_000)]
    for _ in range(messages // len(records)):
        ask(connection, "POST", f"/v1/topics/{TOPIC}/records", {"records": records})


def measure(address: str, messages: int, clients: int) -> dict[str, float]:
    """One round."""
    connection = http.client.HTTPConnection(address, timeout=60)
    fill(connection, messages)
    connection.close()
    begun_s, cpu_before_s = time.perf_counter(), cpu_s(address)
    with ProcessPoolExecutor(clients) as pool:
        count = sum(pool.map(consume, [address] * clients))
    took_s, cpu_used_s = time.perf_counter() - begun_s, cpu_s(address) - cpu_before_s
    assert count == messages // 1_000 * 1_000, count
    return {
        "messages": count,
        "per_s": round(count / took_s),
        "broker_us": round(cpu_used_s / count * 1e6, 1),
        "per_broker_cpu_s": round(count / cpu_used_s),
    }


def main() -> None:
    """Start a broker, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=19_481)
    options = parser.parse_args()
    address = f"127.0.0.1:{options.port}"
    with tempfile.TemporaryDirectory(prefix="headrace-http-") as folder:
        command = [sys.executable, "-m", "headrace", "serve", "--data-dir", folder,
                   "--kafka", "127.0.0.1:0", "--http", address]  # fmt: skip
        broker = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
        try:
            connection = http.client.HTTPConnection(address, timeout=60)
            while True:
                try:
                    connection.request("GET", "/readyz")
                    if connection.getresponse().read():
                        break
                except OSError:
                    connection.close()
                    time.sleep(0.1)
            ask(connection, "POST", "/v1/topics", {"name": TOPIC, "partitions": 3})
            change = {"set": {"share.auto.offset.reset": "earliest"}}
            ask(connection, "PATCH", f"/v1/groups/{GROUP}/config", change)
            for _ in range(options.rounds):
                print(json.dumps(measure(address, options.messages, options.clients)), flush=True)
        finally:
            broker.terminate()
            broker.wait(30)


if __name__ == "__main__":
    main()
