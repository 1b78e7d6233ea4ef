"""Tools of others against the gRPC port: h2spec's own cases, and grpcurl (grpc-go)."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from tests.integration.foreign import HERE, built_in_go
from tests.unit.grpc.served_rig import served

from headrace.grpc import descriptors
from headrace.grpc.health import Health
from headrace.grpc.reflection import Reflection
from headrace.rocketmq import wire

HEALTH = "grpc.health.v1.Health"
UNFIT = 2
"""Cases that enlarge a header table beyond the announced size of 0: RFC 7541 (4.2) forbids it."""


@pytest.fixture(scope="module")
def address():
    health = Health()
    reflection = Reflection([descriptors.HEALTH, *descriptors.REFLECTION], [HEALTH])
    with served(methods=[*health.methods(), *reflection.methods()]) as one:
        yield one.address


def tool(name: str, package: str) -> str:
    (program,), _environment = built_in_go(name, HERE / "grpc_tools", ("go.mod", "go.sum"), package)
    return program


def test_h2spec(address):
    program = tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
    command = [program, "-h", address[0], "-p", str(address[1]), "-o", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    (summary,) = re.findall(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    total, _passed, skipped, failed = map(int, summary)
    assert total >= 140
    assert skipped == 0
    assert failed == UNFIT, done.stdout[-4000:]
    assert done.stdout.count("dynamic table size update") >= UNFIT


class Grpcurl:
    """grpcurl at a broker's port, which takes plain text and TLS."""

    def __init__(self, target: str, *flags: str) -> None:
        program = tool("grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl")
        self._command = [program, *flags]
        self._target = target

    def said(self, *words: str, before: tuple[str, ...] = ()) -> str:
        done = subprocess.run(
            [*self._command, *before, self._target, *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def called(self, method: str, request: dict, *metadata: str) -> dict:
        headers = [word for one in metadata for word in ("-H", one)]
        return json.loads(self.said(method, before=("-d", json.dumps(request), *headers)))


@pytest.mark.parametrize("flag", ["-plaintext", "-insecure"])
def test_grpcurl_finds_and_calls_the_services_of_a_broker(make_broker, flag):
    broker = make_broker("--rocketmq", "127.0.0.1:0")
    at = json.loads((broker.log_path.parent / "ready.json").read_text())["rocketmq"]
    asked = Grpcurl(at, flag)
    assert {HEALTH, wire.SERVICE} <= set(asked.said("list").split())
    assert "rpc Watch" in asked.said("describe", HEALTH)
    methods = {name.rpartition(".")[2] for name in asked.said("list", wire.SERVICE).split()}
    assert methods >= {"SendMessage", "ReceiveMessage", "Telemetry", "SyncLiteSubscription"}
    for service in ("", wire.SERVICE):
        answer = asked.called(f"{HEALTH}/Check", {"service": service})
        assert answer == {"status": "SERVING"}
    sent = {
        "topic": {"name": "none"},
        "endpoints": {"scheme": wire.DOMAIN_NAME, "addresses": [{"host": "mq", "port": 8081}]},
    }
    answer = asked.called(f"{wire.SERVICE}/QueryRoute", sent, "x-mq-client-id: c")
    assert answer["status"]["code"] == "TOPIC_NOT_FOUND"
