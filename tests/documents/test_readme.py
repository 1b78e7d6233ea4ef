"""README's commands and code, run as they stand, against a broker started by its first line.

Only places change: free ports, a folder of the test's own, the interpreter that runs the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.documents.commands import ROOT, blocks, codes
from tests.integration.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """What the first line starts, on other ports."""
    running = Broker(tmp_path_factory.mktemp("readme")).start()
    yield running
    running.stop()


def _lines() -> list[str]:
    (block,) = [text for _, text in blocks(README) if "headrace serve" in text]
    return [line for line in block.splitlines() if line.strip()]


def _here(text: str, broker: Broker) -> str:
    program = f"{sys.executable} -m headrace"
    text = text.replace(".venv/bin/headrace", program).replace("127.0.0.1:9092", broker.kafka)
    return text.replace("127.0.0.1:9180", broker.http)


def _run(arguments: list[str], broker: Broker, timeout_s: float = 120) -> str:
    env = {**os.environ, "HEADRACE_BOOTSTRAP": broker.kafka}
    ran = subprocess.run(
        arguments, capture_output=True, text=True, env=env, timeout=timeout_s, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout


def test_the_lines_of_use_it_do_what_they_say(broker: Broker) -> None:
    first, *lines = _lines()
    assert re.match(r"\.venv/bin/headrace serve\b", first)
    told = [_run(["sh", "-c", _here(line, broker)], broker) for line in lines]
    assert "created orders" in told[0]
    assert told[2].split() == ["1", "2", "3"] or len(told[2].splitlines()) == 3
    assert "headrace_produce_records_total" in told[-1]


def test_the_producer_of_the_readme_stores_its_record(broker: Broker) -> None:
    (code,) = [
        code.text for code in codes() if code.place == "README.md" and "Producer" in code.text
    ]
    _run([sys.executable, "-c", _here(code, broker)], broker)
    stored = _run(
        ["sh", "-c", f"{sys.executable} -m headrace consume orders --count 1 --format json"], broker
    )
    assert stored


@pytest.mark.pipeline
@pytest.mark.timeout(1_500)
def test_the_spark_lines_of_the_readme_show_the_topic(broker: Broker) -> None:
    (code,) = [code.text for code in codes() if code.place == "README.md" and "spark" in code.text]
    create = f"echo a:1 | {sys.executable} -m headrace produce orders --create -K :"
    _run(["sh", "-c", create], broker)
    assert "|orders|" in _run([sys.executable, "-c", _here(code, broker)], broker, 1_200)
