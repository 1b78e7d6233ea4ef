"""`headrace find` over brokers between which partitions move while it asks them."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from headrace.cli.find import find
from headrace.cli.session import CliSession
from headrace.cli.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterator


class Brokers:
    """Two brokers; `serves` says which partitions of which topic each has in its answers."""

    def __init__(self) -> None:
        self.serves: list[set[tuple[str, int]]] = [set(), set()]
        self.now: dict[tuple[str, int], int | None] = {}
        """Who serves a partition by now, None: no broker."""
        self.addresses: list[str] = []

    def answer(self, broker: int, query: dict[str, list[str]]) -> dict[str, Any]:
        """What a broker answers to a search: one message of each partition that it has."""
        places = sorted(self.serves[broker])
        elsewhere: list[dict[str, Any]] = []
        if "partition" in query:
            places = [("orders", int(query["partition"][0]))]
            assert self.now[places[0]] == broker
        else:
            for place in sorted(self.now.keys() - set(places)):
                owner = self.now[place]
                shown: dict[str, Any] = {"topic": place[0], "partition": place[1]}
                if owner is not None:
                    shown["broker"] = {"id": owner, "http": self.addresses[owner]}
                elsewhere.append(shown)
        return {
            "broker": broker,
            "messages": [_message(*place) for place in places],
            "is_complete": True,
            "searched": {"records": len(places), "bytes": 0},
            "elsewhere": elsewhere,
            **{name: [] for name in ("events", "traceparents", "unknown")},
        }


def _message(topic: str, partition: int) -> dict[str, Any]:
    where = {"state": "log", "topic": topic, "partition": partition, "offset": 0}
    return {**where, "timestamp_ms": 1, "headers": [], "key": None, "value": "v"}


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = servers.index(self.server)  # type: ignore[arg-type]
            if self.path == "/v1/cluster":
                answer: dict[str, Any] = {"cluster_id": "here"}
            else:
                answer = made.answer(number, parse_qs(urlsplit(self.path).query))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [Thread(target=one.serve_forever, args=(0.01,)) for one in servers]
    for thread in threads:
        thread.start()
    made.addresses = [f"127.0.0.1:{one.server_port}" for one in servers]
    yield made
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def found(brokers: Brokers) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    arguments = ["orders", "--json", "--http", brokers.addresses[0]]
    result = CliRunner().invoke(find, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    return sorted((one["topic"], one["partition"]) for one in answer["messages"]), answer


def test_a_partition_that_moved_to_a_broker_that_was_asked_is_searched_there(brokers) -> None:
    brokers.serves = [{("orders", 0)}, {("orders", 1)}]
    brokers.now = {("orders", 0): 0, ("orders", 1): 1, ("orders", 2): 0}
    places, answer = found(brokers)
    assert (places, answer["is_complete"]) == ([("orders", 0), ("orders", 1), ("orders", 2)], True)


@pytest.mark.parametrize(("place", "owner"), [(("orders", 2), None), (("orders.dead", 0), 0)])
def test_a_partition_that_cannot_be_searched_any_more_is_named(brokers, place, owner) -> None:
    brokers.serves = [{("orders", 0)}, {("orders", 1)}]
    brokers.now = {("orders", 0): 0, ("orders", 1): 1, place: owner}
    places, answer = found(brokers)
    assert (places, answer["is_complete"]) == ([("orders", 0), ("orders", 1)], False)
    assert f"{place[0]}-{place[1]}" in answer["reason"]
    arguments = ["orders", "id", "--json", "--http", brokers.addresses[0]]
    result = CliRunner().invoke(trace, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert not json.loads(result.stdout)["is_complete"]
