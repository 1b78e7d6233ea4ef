"""Every minor version of Apache Kafka's Java client does what all of them can do."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from functools import cache

import pytest
from tests.integration.foreign import HERE, built_once, pinned_jars, require_javac, run

FAMILY = HERE / "java_family"
RUN_TIMEOUT_S = 400
VERSIONS = [
    line.split()[0].rpartition(":")[2]
    for line in (FAMILY / "jars.txt").read_text().splitlines()
    if not line.startswith("#")
]


@cache
def outcomes(address: str) -> dict[str, str]:
    """What one JVM says of each version; they run one after the other."""
    runtime, compiler = require_javac()
    jars = pinned_jars(FAMILY / "jars.txt")
    # The libraries that the clients load are those of 2.8: none of them changed its interface.
    libraries = [jar for jar in pinned_jars(HERE / "java_2_8" / "jars.txt") if jar not in jars]
    source = FAMILY / "Family.java"
    with built_once("java-family", [compiler, "--version"], [source]) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            run([compiler, "-nowarn", "-d", str(partial), "-cp", str(jars[0]), str(source)], HERE)
            partial.replace(folder)
    classpath = os.pathsep.join(map(str, [folder, *libraries]))
    flags = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    pairs = [f"{version}={jar}" for version, jar in zip(VERSIONS, jars, strict=True)]
    done = subprocess.run(
        [runtime, *flags, "-cp", classpath, "Family", address, *pairs],
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
