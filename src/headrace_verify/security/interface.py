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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

EXAMPLES, EXAMPLES_LONG = 10, 200
OPERATIONS_MIN = 3
WORKERS = 4
"""Requests at once: most of their time is spent waiting, for example in long polls."""
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


def answers_are_as_the_interface_says(abuse: Abuse) -> None:
    document = _document(abuse)
    abuse.expect(str(document.get("openapi", "")).startswith("3.1"), "there is no OpenAPI document")
    if find_spec("schemathesis") is None:
        abuse.skipped.append(
            "requests generated from the OpenAPI document: schemathesis is not installed"
        )
        return
    address = f"http://{abuse.http[0]}:{abuse.http[1]}"
    examples = EXAMPLES_LONG if abuse.is_long else EXAMPLES
    with tempfile.TemporaryDirectory(prefix="headrace-security-") as folder:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json",
                "--max-examples", str(examples), "--seed", str(abuse.rng.randrange(1 << 30)),
                "--generation-database", "none", "--no-color", "--mode", "all",
                "--workers", str(WORKERS),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_LONG_S if abuse.is_long else TIMEOUT_S,
            check=False,
            cwd=folder,
            env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS},
        )  # fmt: skip
    output = done.stdout + done.stderr
    abuse.expect(done.returncode == 0, f"schemathesis: {output[-3000:]}")
    tested = re.search(r"Tested: *(\d+)", output)
    is_tried = tested is not None and int(tested[1]) >= OPERATIONS_MIN
    abuse.expect(is_tried, f"schemathesis has tested too little: {output[-1000:]}")
