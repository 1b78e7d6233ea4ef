"""Apache Kafka's own tools and clients, in one JVM for the whole session.

Invariants: `ToolServer.java` takes one command a line and runs the `main` of the class it
names, so a test costs a call and not the start of a JVM. Where there is no compiler (javac), the
tools run as processes of their own, and what needs `Scenarios.java` is skipped, loudly.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from headrace_bench.kafka_parts import java, kafka_classpath

SOURCES = Path(__file__).with_name("java")
TIMEOUT_S = 300
JVM_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class ToolFailed(AssertionError):
    """A tool ended with a code other than 0; the message holds what it printed."""


def _javac() -> str | None:
    beside = Path(java()).with_name("javac")
    return str(beside) if beside.exists() else shutil.which("javac")


@cache
def _classpath() -> str:
    try:
        return kafka_classpath()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"APACHE KAFKA'S JAVA PARTS ARE NOT THERE: {str(error)[-300:]}")


class Session:
    """A JVM with Kafka's classes, or where it cannot be, a JVM for each call."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-java-"))
        atexit.register(self.close)
        (self.folder / "log4j2.properties").write_text(
            "rootLogger.level=warn\nrootLogger.appenderRef.e.ref=E\nappender.e.type=Console\n"
            "appender.e.name=E\nappender.e.target=SYSTEM_ERR\nappender.e.layout.type=PatternLayout\n"
            "appender.e.layout.pattern=%p %c{1} %m%n%xEx\n"
        )
        self.classpath = f"{self.folder}{os.pathsep}{_classpath()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.has_compiler = False
        self._errors = open(self.folder / "stderr", "w+b")  # noqa: SIM115 - closed at exit
        compiler = _javac()
        if compiler is not None:
            sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
            command = [
                compiler,
                "-nowarn",
                "--release",
                "17",
                "-d",
                str(self.folder),
                "-cp",
                self.classpath,
            ]
            done = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            self.has_compiler = True

    def _command(self, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [java(), *JVM_FLAGS, log4j, "-cp", self.classpath, *arguments]

    def require_compiler(self) -> None:
        """Skip the test where our own scenarios cannot be compiled."""
        if not self.has_compiler:
            pytest.skip("NO JAVA COMPILER (javac): the Java scenarios cannot be compiled")

    def run(self, main: str, *arguments: str, text: str = "", ok: bool = True) -> str:
        """Run `main`'s main; what it printed. Raises ToolFailed unless its code is 0 (`ok`)."""
        if self.has_compiler:
            code, out = self._ask(main, list(arguments), text)
        else:
            if "." not in main:
                self.require_compiler()
            code, out = self._run_alone(main, list(arguments), text)
        if ok and code != 0:
            raise ToolFailed(
                f"{main} {' '.join(arguments)[:300]} ended with {code}:\n{out[-6000:]}"
            )
        return out

    def run_alone(self, main: str, *arguments: str) -> str:
        """Run it in a JVM of its own: for tools that end their work in a shutdown hook."""
        code, out = self._run_alone(main, list(arguments), "")
        assert code == 0, f"{main} {arguments} ended with {code}:\n{out[-6000:]}"
        return out

    def _run_alone(self, main: str, arguments: list[str], text: str) -> tuple[int, str]:
        done = subprocess.run(
            self._command(main, *arguments),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stdout + done.stderr

    def _ask(self, main: str, arguments: list[str], text: str) -> tuple[int, str]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self._command("ToolServer"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        ask = json.dumps({"main": main, "args": arguments, "stdin": text})
        process.stdin.write(ask.encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(TIMEOUT_S):
                self.close()
                raise ToolFailed(f"{main} {arguments} did not end within {TIMEOUT_S} s")
        line = process.stdout.readline()
        if not line:
            errors = (self.folder / "stderr").read_text()
            raise ToolFailed(f"the JVM has ended in {main} {arguments}:\n{errors[-3000:]}")
        answer = json.loads(line)
        return answer["code"], answer["out"]

    def close(self) -> None:
        """End the JVM and remove the folder."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:
                        pass
        if not self._errors.closed:
            self._errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def session() -> Session:
    """The session's JVM. Skips the test where there is no Java or no Kafka."""
    try:
        java()
    except FileNotFoundError as error:
        pytest.skip(f"NO JAVA: {error}")
    return Session()
