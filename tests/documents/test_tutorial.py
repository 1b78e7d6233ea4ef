"""The tutorial is followed: every command works, in its order, and prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.documents.commands import ROOT, blocks
from tests.integration.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "TUTORIAL.md"
LIMIT_S = 180
IN_A_MOMENT = {"headrace dead list orders.dead"}
"""What is repeated until it works: a dead letter is copied after its delivery was settled."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """What the page's first command starts, on free ports."""
    started = Broker(tmp_path / "broker").start()
    yield started
    started.stop()


def test_every_command_of_the_tutorial_works(broker: Broker, tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.kafka,
        "HEADRACE_HTTP": broker.http,
    }
    found = list(blocks(PAGE))
    assert found[0] == ("sh", "headrace serve"), "the fixture starts it"
    printed = ""
    count = 0
    for language, text in found[1:]:
        if language == "text":
            missing = [line for line in text.splitlines() if line not in printed]
            assert not missing, printed
        if language != "sh":
            continue
        for _ in range(10 if text in IN_A_MOMENT else 1):
            ran = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            if ran.returncode == 0:
                break
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        printed = ran.stdout
        count += len(text.splitlines())
    assert count > 15
