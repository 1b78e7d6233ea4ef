"""Clients that are generated from `/openapi.json`: what the document says is what the broker does.

The TypeScript one is compiled strictly, the Python one has every operation.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.broker import Broker
from tests.integration.foreign import installed_for_node

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parent / "openapi_client"
TIMEOUT_S = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path / "broker").start()
    yield started
    started.stop()


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture
def document(broker: Broker, tmp_path: Path) -> Path:
    status, text = broker.get("/openapi.json")
    assert status == 200
    path = tmp_path / "openapi.json"
    path.write_text(text)
    return path


def test_a_typescript_client_compiles_and_works(broker, document, tmp_path) -> None:
    (node, _), environment = installed_for_node("openapi-node", SOURCE, "client.ts")
    packages = Path(environment["NODE_CLIENTS"]) / "node_modules"
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / "node_modules").symlink_to(packages)
    (folder / "package.json").write_text('{"type": "module"}')
    generator = str(packages / "openapi-typescript" / "bin" / "cli.js")
    run(node, generator, str(document), "--output", "headrace.ts", folder=folder)
    shutil.copy(SOURCE / "client.ts", folder)
    compiler = [node, str(packages / "typescript" / "bin" / "tsc"), "--strict", "--skipLibCheck"]
    target = ["--target", "es2022", "--module", "nodenext"]
    # a path that does not exist, and a field that no message has, are errors
    for wrong in ("'/v1/topics/{topic}/records'", "message.receipt"):
        text = (SOURCE / "client.ts").read_text()
        assert wrong in text
        (folder / "wrong.ts").write_text(text.replace(wrong, wrong.replace("re", "er")))
        done = subprocess.run(
            [*compiler, *target, "--noEmit", "wrong.ts"],
            cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode != 0
        assert "wrong.ts" in done.stdout, done.stdout
    run(*compiler, *target, "client.ts", folder=folder)
    found = json.loads(run(node, "client.js", broker.http, folder=folder).splitlines()[-1])
    assert (found["values"], found["settled"]) == (["one", "two"], 2)
    assert found["problem"]["status"] == 404


PROGRAM = """
import json, sys
from headrace_client import Client
from headrace_client.api.default import create_topic, get_topic, produce, receive, settle
from headrace_client.models import (
    CreateTopicBody, Problem, ProduceBody, ProduceBodyRecordsItem, ReceiveAnswer, ReceiveBody,
    SettleBody,
)

client = Client(base_url=f"http://{sys.argv[1]}")
create_topic.sync(client=client, body=CreateTopicBody(name="typed", partitions=2))
receive.sync("typed", "typed-group", client=client)  # a new group begins at the end
items = [ProduceBodyRecordsItem(key="a", value="one"), ProduceBodyRecordsItem(key="b", value="two")]
produce.sync("typed", client=client, body=ProduceBody(records=items))
values, settled = [], 0
while len(values) < 2:
    body = ReceiveBody(max_=10, wait_ms=1000)
    found = receive.sync("typed", "typed-group", client=client, body=body)
    assert isinstance(found, ReceiveAnswer), found
    if found.messages:
        values += [one.value for one in found.messages]
        ack = SettleBody(ack=[one.receipt for one in found.messages])
        done = settle.sync("typed", "typed-group", client=client, body=ack)
        settled += sum(one.ok for one in done.results)
problem = get_topic.sync("none", client=client)
assert isinstance(problem, Problem), problem
print(json.dumps({"values": sorted(values), "settled": settled, "status": problem.status}))
"""


def test_a_python_client_is_generated_without_a_gap_and_works(broker, document, tmp_path) -> None:
    generator = Path(sys.executable).parent / "openapi-python-client"
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    shown = run(
        str(generator), "generate", "--path", str(document), "--meta", "none",
        "--output-path", "headrace_client", "--config", "config.yml", folder=tmp_path,
    )  # fmt: skip
    assert "Warning" not in shown, "each operation and schema is part of it"
    operations = json.loads(document.read_text())["paths"].values()
    count = sum(
        method in one for one in operations for method in ("get", "post", "put", "patch", "delete")
    )
    made = [*(tmp_path / "headrace_client" / "api" / "default").glob("[a-z]*.py")]
    assert len(made) == count
    (tmp_path / "program.py").write_text(PROGRAM)
    found: dict[str, Any] = json.loads(
        run(sys.executable, "program.py", broker.http, folder=tmp_path)
    )
    assert found == {"values": ["one", "two"], "settled": 2, "status": 404}
