"""The quickstarts run as they stand, each with the client that it names, in pinned versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from tests.debian import unpacked
from tests.documents.commands import ROOT, blocks
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.integration.foreign import (
    installed_for_node,
    pinned_jars,
    require_javac,
    run,
)

from headrace.java.jars import cache_folder
from headrace_verify.blackbox.languages.rocketmq import NotInstalled, find_python

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
CLIENTS = ROOT / "tests" / "integration"
QUICKSTARTS = list(blocks(ROOT / "docs" / "QUICKSTARTS.md"))
LIMIT_S = 300
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """What `headrace serve` starts, on free ports."""
    started = Broker(tmp_path_factory.mktemp("quickstarts")).start()
    create_topic(started.kafka, "quickstart")
    yield started
    started.stop()


def texts(language: str, broker: Broker) -> list[str]:
    """The page's blocks in a language, for this broker."""
    found = [text for kind, text in QUICKSTARTS if kind == language]
    assert found, language
    return [
        one.replace("127.0.0.1:9092", broker.kafka).replace("127.0.0.1:9180", broker.http)
        for one in found
    ]


def says_hello(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    assert "hello" in done.stdout


def environment() -> Path:
    """The Python that has FastStream and Celery."""
    try:
        return find_python((HERE / "quickstarts.lock").read_text())
    except NotInstalled as error:
        pytest.skip(str(error))


def test_each_language_has_one() -> None:
    kinds = {kind for kind, _ in QUICKSTARTS}
    expected = {"python", "python faststream", "python celery", "sh celery"}
    assert kinds == {*expected, "java", "go", "js", "rust", "c"}


@pytest.mark.parametrize("number", range(4))
def test_python(broker: Broker, tmp_path: Path, number: int) -> None:
    found = texts("python", broker)
    assert len(found) == 4
    says_hello([sys.executable, "-c", found[number]], tmp_path)


def test_faststream(broker: Broker, tmp_path: Path) -> None:
    (text,) = texts("python faststream", broker)
    says_hello([str(environment()), "-c", text], tmp_path)


def test_celery(broker: Broker, tmp_path: Path) -> None:
    python = environment()
    (tmp_path / "tasks.py").write_text(texts("python celery", broker)[0])
    (commands,) = texts("sh celery", broker)
    path = f"{python.parent}:{os.environ['PATH']}"
    log = tmp_path / "log"
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-euc", f"{commands}\nwait"],
            cwd=tmp_path, env={**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)},
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        while not re.search("hello$", log.read_text(), re.MULTILINE):  # a line of its log
            is_late = time.monotonic() > deadline
            assert shell.poll() is None and not is_late, log.read_text()[-4_000:]  # noqa: PT018
            time.sleep(0.2)
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


@pytest.mark.parametrize("number", range(2))
def test_java(broker: Broker, tmp_path: Path, number: int) -> None:
    java, _compiler = require_javac()
    (tmp_path / "Quickstart.java").write_text(texts("java", broker)[number])
    jars = os.pathsep.join(map(str, pinned_jars(HERE / "spring.txt")))
    says_hello([java, *JAVA, "-cp", jars, "Quickstart.java"], tmp_path)


def test_go(broker: Broker, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    (tmp_path / "main.go").write_text(texts("go", broker)[0])
    for name in ("go.mod", "go.sum"):
        shutil.copy(CLIENTS / "go_clients" / name, tmp_path)
    options = ("-buildvcs=false", "-ldflags=-s -w", "-o", "quickstart")
    run([go, "build", *options, "."], tmp_path, GOFLAGS="-mod=mod", GOWORK="off")
    says_hello([str(tmp_path / "quickstart")], tmp_path)


def test_node(broker: Broker, tmp_path: Path) -> None:
    (node, _), folders = installed_for_node("node", CLIENTS / "node_clients", "copy.mjs")
    (tmp_path / "node_modules").symlink_to(Path(folders["NODE_CLIENTS"]) / "node_modules")
    (tmp_path / "quickstart.mjs").write_text(texts("js", broker)[0])
    says_hello([node, "quickstart.mjs"], tmp_path)


def test_rust(broker: Broker, tmp_path: Path) -> None:
    cargo = shutil.which("cargo") or shutil.which(Path.home() / ".cargo" / "bin" / "cargo")
    if cargo is None:
        pytest.skip("no Rust compiler with cargo (packages rustc, cargo)")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text(texts("rust", broker)[0])
    for name in ("Cargo.toml", "Cargo.lock"):
        text = (CLIENTS / "rust_clients" / name).read_text()
        (tmp_path / name).write_text(text.replace("rust-clients", "quickstart"))
    target = cache_folder() / "test-clients" / "rust-target"
    run([cargo, "build", "--quiet", "--locked"], tmp_path, CARGO_TARGET_DIR=str(target))
    says_hello([str(target / "debug" / "quickstart")], tmp_path)


def test_c(broker: Broker, tmp_path: Path) -> None:
    """Compiled with Debian's header, and the library that confluent-kafka brings."""
    compiler, headers = shutil.which("cc"), unpacked("librdkafka-dev")
    libraries = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    library = next(libraries.glob("librdkafka-*.so*"), None)
    if compiler is None or headers is None or library is None:
        pytest.skip("no C compiler, or no librdkafka-dev by apt-get")
    (tmp_path / "quickstart.c").write_text(texts("c", broker)[0])
    linked = [str(library), f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    header = f"-I{headers / 'usr' / 'include'}"
    run([compiler, "-Wall", "-Werror", "quickstart.c", header, *linked, "-o", "q"], tmp_path)
    says_hello([str(tmp_path / "q")], tmp_path)
