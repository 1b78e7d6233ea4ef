"""Every minor version of Apache Kafka's Java client does what all of them can do."""

from __future__ import annotations

import itertools
import subprocess
from functools import cache

import pytest
from tests.integration.foreign import JAVA_VERSIONS as VERSIONS
from tests.integration.foreign import java_family_program

RUN_TIMEOUT_S = 400


@cache
def outcomes(address: str) -> dict[str, str]:
    """What one JVM says of each version; they run one after the other."""
    command, jars = java_family_program("Family")
    pairs = [f"{version}={jar}" for version, jar in zip(VERSIONS, jars, strict=True)]
    done = subprocess.run(
        [*command, address, *pairs],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    said[""] = done.stderr[-6000:]
    return said


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_client_of_every_minor_version_works(broker, version):
    said = outcomes(broker.kafka)
    assert said.get(version) == "ok", f"{said.get(version)}\n{said['']}"


def test_no_minor_version_is_left_out():
    pairs = [tuple(map(int, version.split(".")[:2])) for version in VERSIONS]
    assert pairs == sorted(set(pairs))
    assert (pairs[0], pairs[-1]) == ((2, 0), (4, 4))
    for before, after in itertools.pairwise(pairs):
        assert after in {(before[0], before[1] + 1), (before[0] + 1, 0)}
