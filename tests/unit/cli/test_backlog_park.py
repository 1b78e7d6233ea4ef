"""Parked keys on the command line: what brokers answer about their parts of a topic, together."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner

from headrace.cli.backlog_park import park, parked, unpark
from headrace.cli.session import Session


@pytest.fixture
def brokers():
    """The addresses of two servers, and what each answers."""
    answers: dict[int, dict] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.dumps(answers[self.server.server_port]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            pass

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [Thread(target=one.serve_forever, args=(0.01,)) for one in servers]
    for thread in threads:
        thread.start()
    yield [f"127.0.0.1:{one.server_port}" for one in servers], answers
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def answered(brokers, *shown: dict, unserved: tuple[int, ...] = ()):
    """Broker 0 serves partition 0 and broker 1 partition 1; no broker serves `unserved`."""
    addresses, answers = brokers
    for number, fields in enumerate(shown):
        other = {"id": 1 - number, "http": addresses[1 - number]}
        elsewhere = [{"partition": 1 - number, "broker": other}]
        elsewhere += [{"partition": lost} for lost in unserved]
        port = int(addresses[number].rpartition(":")[2])
        answers[port] = {"broker": number, "elsewhere": elsewhere, **fields}
    return addresses[0]


def typed(command, address: str, *keys: str):
    arguments = ["workers", "orders", *keys, "--http", address]
    return CliRunner().invoke(command, arguments, obj=Session("nowhere:1"))


def test_a_key_counts_as_released_on_whichever_broker_it_was_parked(brokers):
    address = answered(brokers, {"keys": ["a"]}, {"keys": ["a", "b"]})
    done = typed(unpark, address, "a", "b", "c")
    assert (done.exit_code, "2 of 3 keys were released" in done.output) == (0, True), done.output


def test_no_command_on_parked_keys_succeeds_where_a_partition_has_no_broker(brokers):
    shown = {"keys": ["a"], "parked": []}
    address = answered(brokers, shown, shown)
    for command, keys in ((park, ["a"]), (parked, []), (unpark, ["a"])):
        assert typed(command, address, *keys).exit_code == 0
    address = answered(brokers, shown, shown, unserved=(2, 5))
    for command, keys in ((park, ["a"]), (parked, []), (unpark, ["a"])):
        done = typed(command, address, *keys)
        assert done.exit_code == 1
        assert "partitions 2, 5 have no broker that could be asked" in done.output
