"""Client programs in Go, JavaScript, Rust and Java: built once into the cache, versions pinned.

Invariants: a toolchain that is not installed skips the test with a reason; anything else that
keeps a program from being built fails it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.java.jars import Jar, cache_folder, ensure_jars
from headrace_bench.kafka_parts import java

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
JAVA_FAMILY = HERE / "java_family"
JAVA_VERSIONS = [
    line.split()[0].rpartition(":")[2]
    for line in (JAVA_FAMILY / "jars.txt").read_text().splitlines()
    if not line.startswith("#")
]
BUILD_TIMEOUT_S = 900
GO_TESTS_TIMEOUT_S = 2_400


@contextmanager
def built_once(kind: str, toolchain: list[str], sources: list[Path]) -> Iterator[Path]:
    """The folder in the cache for these sources; one process builds at a time."""
    digest = hashlib.sha256(subprocess.check_output(toolchain))
    for path in sources:
        digest.update(path.read_bytes())
    root = cache_folder() / "test-clients"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root / f"{kind}-{digest.hexdigest()[:16]}"


def run(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


def go_program() -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the program in Go."""
    names = ("main.go", "franz.go", "sarama.go", "share.go", "login.go", "go.mod", "go.sum")
    return built_in_go("go", HERE / "go_clients", names)


def built_in_go(
    kind: str, source: Path, names: tuple[str, ...], package: str = "."
) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the program in a folder; `names`: its files.

    `package`: of a module that the folder's go.mod pins, instead of the folder's own program.
    """
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    with built_once(kind, [go, "version"], [source / name for name in names]) as program:
        if not program.exists():
            partial = program.with_suffix(".partial")
            run(
                [go, "build", "-buildvcs=false", "-trimpath", "-o", str(partial), package],
                source, GOFLAGS="-mod=readonly", GOWORK="off",
            )  # fmt: skip
            partial.replace(program)
    return [str(program)], {}


def go_family_program(library: str, age: str) -> str:
    """The program of `go_family` for a library in one of the versions that its .mod files pin."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    source = HERE / "go_family" / library
    pinned = [source / name for name in ("main.go", f"{age}.mod", f"{age}.sum")]
    with built_once(f"{library}-{age}", [go, "version"], pinned) as program:
        if not program.exists():
            partial = program.with_suffix(".partial")
            # A go.mod of its own keeps the folder from being part of another module.
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(pinned[0], folder)
                shutil.copy(pinned[1], Path(folder) / "go.mod")
                shutil.copy(pinned[2], Path(folder) / "go.sum")
                run(
                    [go, "build", "-buildvcs=false", "-trimpath", "-o", str(partial), "."],
                    Path(folder), GOFLAGS="-mod=readonly", GOWORK="off",
                )  # fmt: skip
            partial.replace(program)
    return str(program)


def go_module(module: str) -> Path:
    """The folder of a module in the version that the client programs pin."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    listed = subprocess.run(
        [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module],
        cwd=HERE / "go_clients", env=os.environ | {"GOWORK": "off"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return Path(listed.stdout.strip())


def go_tests(folder: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """The outcome of each test of a package, without those inside other tests."""
    done = subprocess.run(
        ["go", "test", "-json", "-count=1", f"-timeout={GO_TESTS_TIMEOUT_S}s", *arguments, "."],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False,
        timeout=GO_TESTS_TIMEOUT_S + 600,
    )  # fmt: skip
    ends = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    outcomes = {
        event["Test"]: ends[event["Action"]]
        for event in events
        if event["Action"] in ends and "/" not in event.get("Test", "/")
    }
    assert outcomes, done.stdout[-4000:] + done.stderr[-4000:]
    return outcomes


def node_program() -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the copying program in JavaScript."""
    return installed_for_node("node", HERE / "node_clients", "copy.mjs")


def installed_for_node(kind: str, source: Path, script: str) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of a script, with the packages of its folder's lock file."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node.js with npm on the PATH (packages nodejs, npm)")
    pinned = [source / "package.json", source / "package-lock.json"]
    with built_once(kind, [node, "--version"], pinned) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for path in pinned:
                shutil.copy(path, partial)
            run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], partial)
            partial.replace(folder)
    return [node, str(source / script)], {"NODE_CLIENTS": str(folder)}


def rust_program() -> list[str]:
    """The command of the program in Rust."""
    return built_in_rust("rust", HERE / "rust_clients", ("src/main.rs", "src/login.rs"))


def rust_family_program(age: str) -> str:
    """The program of `rust_family` for the version of rskafka that a .toml file pins."""
    source = HERE / "rust_family"
    files = {"src/main.rs": "main.rs", "Cargo.toml": f"{age}.toml", "Cargo.lock": f"{age}.lock"}
    pinned = [source / name for name in files.values()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "src").mkdir()
        for name, path in zip(files, pinned, strict=True):
            shutil.copy(path, Path(folder) / name)
        return build_in_rust(f"rskafka-{age}", f"{age}-family", Path(folder), pinned)


def built_in_rust(kind: str, source: Path, names: tuple[str, ...]) -> list[str]:
    """The command of the program in a folder, the package `<kind>-clients`."""
    pinned = [source / name for name in (*names, "Cargo.toml", "Cargo.lock")]
    return [build_in_rust(kind, f"{kind}-clients", source, pinned)]


def build_in_rust(kind: str, package: str, folder: Path, pinned: list[Path]) -> str:
    """The program of a package whose text is in the pinned files."""
    cargo = shutil.which("cargo") or shutil.which(Path.home() / ".cargo" / "bin" / "cargo")
    if cargo is None:
        pytest.skip(
            "no Rust compiler with cargo on the PATH or in ~/.cargo/bin (packages rustc, cargo)"
        )
    with built_once(kind, [cargo, "--version"], pinned) as program:
        if not program.exists():
            target = program.parent / f"{kind}-target"  # what was compiled before is used again
            run(
                [cargo, "build", "--locked", "--manifest-path", str(folder / "Cargo.toml")],
                HERE, CARGO_TARGET_DIR=str(target),
            )  # fmt: skip
            partial = program.with_suffix(".partial")
            shutil.copy(target / "debug" / package, partial)
            partial.replace(program)
    return str(program)


def require_javac() -> tuple[str, str]:
    """The commands (java, javac). Skips the test where one is missing."""
    try:
        runtime = java()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    compiler = shutil.which("javac") or str(Path(runtime).with_name("javac"))
    if not Path(compiler).exists():
        pytest.skip("no Java compiler (javac): install a JDK 17 or 21")
    return runtime, compiler


def pinned_jars(path: Path) -> list[Path]:
    """The jars that a file pins, one a line, in its order."""
    lines = path.read_text().splitlines()
    return ensure_jars([Jar.parse(line) for line in lines if not line.startswith("#")])


def java_family_program(main: str) -> tuple[list[str], list[Path]]:
    """The command of a program of `java_family`, and the jar of each version, oldest first."""
    runtime, compiler = require_javac()
    jars = pinned_jars(JAVA_FAMILY / "jars.txt")
    # The libraries that the clients load are those of 2.8: none of them changed its interface.
    libraries = [jar for jar in pinned_jars(HERE / "java_2_8" / "jars.txt") if jar not in jars]
    sources = [JAVA_FAMILY / "Family.java", JAVA_FAMILY / "FamilyLogin.java"]
    with built_once("java-family", [compiler, "--version"], sources) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            run(
                [compiler, "-nowarn", "-d", str(partial), "-cp", str(jars[0]), *map(str, sources)],
                HERE,
            )
            partial.replace(folder)
    classpath = os.pathsep.join(map(str, [folder, *libraries]))
    flags = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [runtime, *flags, "-cp", classpath, main], jars


def old_java_program() -> tuple[list[str], dict[str, str]]:
    """(command, environment) of the program on kafka-clients 2.8."""
    runtime, compiler = require_javac()
    source = HERE / "java_2_8"
    classpath = os.pathsep.join(map(str, pinned_jars(source / "jars.txt")))
    names = [source / "Clients.java", source / "jars.txt"]
    with built_once("java-2.8", [compiler, "--version"], names) as folder:
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            run([compiler, "-nowarn", "-d", str(partial), "-cp", classpath, str(names[0])], source)
            partial.replace(folder)
    flags = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [runtime, *flags, "-cp", f"{folder}{os.pathsep}{classpath}", "Clients"], {}
