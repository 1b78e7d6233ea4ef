"""The official Java client of BookKeeper as a process that is driven line by line.

Invariants: `java/BookKeeperOracle.java` is compiled once a session against the jars of the
cluster's own servers. Where there is no compiler, what needs it is skipped, loudly.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.dev_cluster.parts import Parts

SOURCE = Path(__file__).with_name("java") / "BookKeeperOracle.java"
_LENGTH = Struct(">I")


class OracleError(AssertionError):
    """The Java client raised a BKException with this code."""

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.code = int(line.split()[1])


class Found(NamedTuple):
    """What the Java client makes of a ledger."""

    last_entry: int
    length: int
    digest: str
    state: str
    ensembles: str


class Oracle:
    """One JVM with one client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if line.startswith("error "):
            raise OracleError(line)
        return line

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def ask(self, *words: object) -> list[str]:
        self.tell(*words)
        return self.line().split()[1:]

    def create(self, ensemble: int, write: int, ack: int) -> int:
        return int(self.ask("create", ensemble, write, ack)[0])

    def recover(self, ledger: int) -> Found:
        return _found(self.ask("recover", ledger))

    def look(self, ledger: int) -> Found:
        """Open without recovery and read up to the last add confirmed."""
        return _found(self.ask("look", ledger))


def _found(words: list[str]) -> Found:
    last, length, digest, state, ensembles = words
    return Found(int(last), int(length), digest, state, ensembles)


def digest_of(payloads: list[bytes]) -> str:
    """As the oracle computes it."""
    digest = hashlib.sha256()
    for payload in payloads:
        digest.update(_LENGTH.pack(len(payload)))
        digest.update(payload)
    return digest.hexdigest()


def stream(position: int, size: int) -> bytes:
    """The bytes of every test ledger: byte p is byte p % 8 of the number p // 8."""
    first, last = position // 8, (position + size + 7) // 8
    data = b"".join(number.to_bytes(8, "big") for number in range(first, last))
    return data[position - first * 8 :][:size]


def classes(parts: Parts, folder: Path) -> str:
    """The class path with the oracle compiled into `folder`."""
    beside = parts.java.with_name("javac")
    compiler = str(beside) if beside.exists() else shutil.which("javac")
    if compiler is None:
        pytest.skip("NO JAVA COMPILER (javac): BookKeeper's own client cannot be asked")
    command = [compiler, "-nowarn", "--release", "17", "-cp", parts.classpath, "-d", str(folder)]
    done = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return f"{folder}{os.pathsep}{parts.classpath}"


@contextmanager
def oracle(
    parts: Parts, folder: Path, zookeeper: str, heap_mb: int = 256, *, is_warm: bool = False
) -> Iterator[Oracle]:
    """A started oracle. Its log is in `folder`. `is_warm`: with the compiler that takes time."""
    with_oracle = type(parts)(parts.java, classes(parts, folder))
    command = with_oracle.command(folder, heap_mb, "BookKeeperOracle", zookeeper)
    if is_warm:
        command.remove("-XX:TieredStopAtLevel=1")
    # Its standard output is ours: the log goes elsewhere.
    settings = folder / "log4j2.properties"
    settings.write_text(
        settings.read_text()
        .replace("rootLogger.level = info", "rootLogger.level = error")
        .replace(
            "appender.out.name = out", "appender.out.name = out\nappender.out.target = SYSTEM_ERR"
        )
    )
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield Oracle(process)
    finally:
        process.kill()
        process.wait()
        for stream_ in (process.stdin, process.stdout):
            if stream_ is not None:
                try:
                    stream_.close()
                except OSError:
                    pass
