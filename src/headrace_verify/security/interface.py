"""Tests the HTTP server against its own OpenAPI document, with schemathesis if it is installed.

Invariants: bounded examples, a fixed seed; without the tool, the test is skipped and reported.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headrace_verify.security.known import KNOWN

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

EXAMPLES, EXAMPLES_LONG = 10, 200
METHODS = frozenset(("get", "put", "post", "delete", "options", "head", "patch", "trace"))
PROCESSES = 3
"""Processes that share the paths, besides one that follows links. Most of their time is spent
waiting, for example in long polls. They are not threads (`--workers`): in Python 3.11 two
threads that parse code at once may fail (cpython issue 106905)."""
TIMEOUT_S, TIMEOUT_LONG_S = 540, 3_600
HOOKS = "headrace_verify.security.short_waits"


def _document(abuse: Abuse) -> dict[str, Any]:
    client = http.client.HTTPConnection(*abuse.http, timeout=30)
    try:
        client.request("GET", "/openapi.json")
        data = client.getresponse().read()
    finally:
        client.close()
    abuse.record_received(data)
    found: dict[str, Any] = json.loads(data)
    return found


def _create_known(abuse: Abuse) -> None:
    """Create the topic and the group that the hooks name, with a record that is a dead letter."""
    topic, group = KNOWN["topic"], KNOWN["group"]
    letter = {"key": "k", "value": "v", "headers": [["__dlq.errors.topic", topic]]}
    attributes = {"headrace.message.attributes": "true"}
    client = http.client.HTTPConnection(*abuse.http, timeout=30)
    try:
        for path, body in (
            ("/v1/topics", {"name": topic, "partitions": 2, "config": attributes}),
            (f"/v1/topics/{topic}/records", {"records": [letter] * 3}),
            (f"/v1/queues/{topic}/{group}/receive", {"max": 1}),
        ):
            headers = {"Content-Type": "application/json"}
            client.request("POST", path, json.dumps(body), headers)
            answer = client.getresponse()
            abuse.expect(answer.status in {200, 201}, f"{path}: {answer.read()[:300]!r}")
    finally:
        client.close()


def answers_are_as_the_interface_says(abuse: Abuse) -> None:
    document = _document(abuse)
    abuse.expect(str(document.get("openapi", "")).startswith("3.1"), "there is no OpenAPI document")
    if find_spec("schemathesis") is None:
        abuse.skipped.append(
            "requests generated from the OpenAPI document: schemathesis is not installed"
        )
        return
    _create_known(abuse)
    examples = EXAMPLES_LONG if abuse.is_long else EXAMPLES
    seed = abuse.rng.randrange(1 << 30)
    paths = sorted(document["paths"])
    parts = [paths[number::PROCESSES] for number in range(PROCESSES)]
    runs = [["--phases", "stateful"]]
    for part in filter(None, parts):
        chosen = [text for path in part for text in ("--include-path", path)]
        runs.append(["--phases", "examples,coverage,fuzzing", *chosen])
    timeout_s = TIMEOUT_LONG_S if abuse.is_long else TIMEOUT_S
    with (
        tempfile.TemporaryDirectory(prefix="headrace-security-") as folder,
        ThreadPoolExecutor(len(runs)) as threads,
    ):
        common = [
            f"http://{abuse.http[0]}:{abuse.http[1]}/openapi.json",
            "--max-examples", str(examples), "--seed", str(seed),
            "--generation-database", "none", "--no-color", "--mode", "all",
        ]  # fmt: skip
        outputs = list(
            threads.map(lambda run: _run_schemathesis([*common, *run], folder, timeout_s), runs)
        )
    for return_code, output in outputs:
        abuse.expect(return_code == 0, f"schemathesis: {output[-3000:]}")
    tested = sum(_count_tested(output) for _, output in outputs[1:])
    count = sum(method in METHODS for path in document["paths"].values() for method in path)
    abuse.expect(tested == count, f"schemathesis has tested {tested} of {count} operations")


def _run_schemathesis(arguments: list[str], folder: str, timeout_s: float) -> tuple[int, str]:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "schemathesis.cli", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS},
    )
    return done.returncode, done.stdout + done.stderr


def _count_tested(output: str) -> int:
    tested = re.search(r"Tested: *(\d+)", output)
    return 0 if tested is None else int(tested[1])
