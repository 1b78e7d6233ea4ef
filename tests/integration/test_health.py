"""`headrace health` of real brokers, as an operator and a probe see it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic
from tests.waiting import wait_until

TIMEOUT_S = 60


def health(*options: str) -> tuple[int, str, str]:
    """(exit code, output, errors)."""
    command = [sys.executable, "-m", "headrace.cli.main", *options[:2], "health", *options[2:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def own(tmp_path):
    broker = Broker(tmp_path, "--admin-address", "127.0.0.1:0").start()
    yield broker
    broker.kill()


def test_a_broker_is_ready_then_damaged_then_gone(own: Broker) -> None:
    at = ("--bootstrap", own.kafka)
    code, shown, _ = health(*at)
    assert (code, "is ready" in shown) == (0, True)
    admin = json.loads((own.log_path.parent / "ready.json").read_text())["admin"]
    for live in ((), ("--live",)):
        assert health(*at, "--http", admin, *live)[0] == 0
    code, shown, _ = health(*at, "--cluster", "--json")
    found = json.loads(shown)
    assert (code, found["ok"], len(found["brokers"])) == (0, True, 1)

    for topic in ("damaged", "sound"):
        create_topic(own.kafka, topic)
        Confluent.produce(own.kafka, topic, [Rec(None, topic.encode() * 100)] * 50)
    own.stop()
    own.is_damaged = True
    for path in (own.data_dir / "ledgers").rglob("*.ledger"):
        data = bytearray(path.read_bytes())
        if (place := data.find(b"damageddamaged")) >= 0:
            data[place] ^= 1
            path.write_bytes(data)
    own.start()
    for topic in ("damaged", "sound"):
        own.get(f"/v1/topics/{topic}/records?partition=0&offset=0")
    wait_until(lambda: "problems" in own.get("/readyz")[1])
    code, shown, errors = health(*at)
    assert code == 1, shown
    assert "is ready, with problems" in shown
    assert "damaged-0: " in shown
    assert "1 of 1 brokers" in errors
    assert health(*at, "--live")[0] == 0, "it is not to be restarted for that"

    own.kill()
    code, shown, _ = health("--bootstrap", own.kafka, "--http", own.http, "--json")
    assert code == 4
    (one,) = json.loads(shown)["brokers"]
    assert (one["alive"], one["ok"]) == (False, False)
    assert "did not respond" in one["problems"][0]["reason"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_service_manager_learns_of_readiness_life_and_the_end(
    tmp_path, monkeypatch, workers
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        broker = Broker(tmp_path / "broker", "--workers", workers).start()
        try:
            assert manager.recv(100) == b"READY=1"
            for _ in range(3):
                assert manager.recv(100) == b"WATCHDOG=1"
        finally:
            broker.stop()
        while (last := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"


def test_the_settings_of_the_container_serve_clients_outside_it(tmp_path) -> None:
    containerfile = Path(__file__).parents[2] / "deploy" / "Containerfile"
    text = containerfile.read_text().replace("\\\n", " ")
    given = dict(re.findall(r"(HEADRACE_\w+)=(\S+)", text.partition("ENV ")[2].partition("\n")[0]))
    given["HEADRACE_DATA_DIR"] = str(tmp_path / "data")
    ports = {"9092": 0, "9180": 0, "9181": 0}
    for name in ports:
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports[name] = free.getsockname()[1]
    for name, value in given.items():
        host, colon, port = value.rpartition(":")
        if colon:
            given[name] = f"{host}:{ports[port]}"
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--json"]
    broker = subprocess.Popen(
        command, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith(b'{"ready": true')
        bootstrap = f"127.0.0.1:{ports['9092']}"
        create_topic(bootstrap, "t")
        Confluent.produce(bootstrap, "t", [Rec(None, b"v")])
        admin = f"127.0.0.1:{ports['9181']}"
        assert health("--bootstrap", bootstrap, "--live", "--http", admin)[0] == 0
    finally:
        broker.terminate()
        broker.communicate(timeout=TIMEOUT_S)
