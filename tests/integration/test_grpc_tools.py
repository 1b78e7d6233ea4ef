"""Tools of others against the gRPC port: h2spec's own cases, and grpcurl (grpc-go)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from tests.unit.grpc.served_rig import served

from headrace.grpc import descriptors
from headrace.grpc.health import Health
from headrace.grpc.reflection import Reflection

HEALTH = "grpc.health.v1.Health"
UNFIT = 2
"""Cases that enlarge a header table beyond the announced size of 0: RFC 7541 (4.2) forbids it."""


@pytest.fixture(scope="module")
def address():
    health = Health()
    reflection = Reflection([descriptors.HEALTH, *descriptors.REFLECTION], [HEALTH])
    with served(methods=[*health.methods(), *reflection.methods()]) as one:
        yield one.address


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH (`go install`)")
    return found


def test_h2spec(address):
    command = [tool("h2spec"), "-h", address[0], "-p", str(address[1]), "-o", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    (summary,) = re.findall(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    total, _passed, skipped, failed = map(int, summary)
    assert total >= 140
    assert skipped == 0
    assert failed == UNFIT, done.stdout[-4000:]
    assert done.stdout.count("dynamic table size update") >= UNFIT


def test_grpcurl(address):
    command = [tool("grpcurl"), "-plaintext"]
    target = f"{address[0]}:{address[1]}"

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    assert HEALTH in said(target, "list").split()
    assert "rpc Watch" in said(target, "describe", HEALTH)
    assert json.loads(said("-d", "{}", target, f"{HEALTH}/Check")) == {"status": "SERVING"}
