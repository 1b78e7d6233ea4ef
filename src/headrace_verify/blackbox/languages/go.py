"""Programs in Go, and the client with franz-go: how they are built and started, and its settings.

Invariants: their modules are pinned in `go.sum` and downloaded by Go. A program is built into the
cache once, and again when its source or the compiler changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Rejected, Retriable
from headrace_verify.blackbox.consumers import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from headrace_verify.blackbox.languages.cached import made_once
from headrace_verify.blackbox.languages.child import CODECS, command_of, consume, produce

if TYPE_CHECKING:
    from headrace_verify.blackbox.context import Context

_SOURCE = Path(__file__).with_name("go_client")
_FILES = ("main.go", "go.mod", "go.sum")
_BUILD_TIMEOUT_S = 1_800
"""It takes half a minute of CPU time; on an overloaded machine, thirty times as long."""


class GoMissing(Rejected):
    """There is no Go compiler."""


class NotBuilt(Retriable):
    """The program could not be built."""


def find_command() -> list[str]:
    """The command that starts the client with franz-go. Raises as `find_program`."""
    return [str(find_program(_SOURCE, "kafka-client"))]


def find_program(source: Path, name: str) -> Path:
    """The program of this name; builds it first if it is not cached. Raises GoMissing, NotBuilt."""
    go = shutil.which("go")
    if go is None:
        raise GoMissing("no Go compiler on the PATH: install one (package golang-go)")
    digest = hashlib.sha256(_run(source, go, "version").encode())
    for file in _FILES:
        digest.update((source / file).read_bytes())

    def build(program: Path) -> None:
        _run(source, go, "build", "-buildvcs=false", "-trimpath", "-o", str(program), ".")

    return made_once("go-clients", f"{name}-{digest.hexdigest()[:16]}", build)


def _run(source: Path, *command: str) -> str:
    environment = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command, cwd=source, env=environment, capture_output=True, text=True, check=False,
            timeout=_BUILD_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"`go {command[1]}` could not be run: {error}; try again.") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-300:]
        raise NotBuilt(f"`go {command[1]}` failed: {output}; skipping the Go client.")
    return done.stdout


def run_go_producer(context: Context) -> None:
    """Idempotent, franz-go's default."""
    settings: dict[str, object] = {
        "linger_ms": context.rng.choice((0, 1, 20)),
        "compression": context.rng.choice(("none", *CODECS)),
    }
    produce(context, _command(context, "producer", settings))


def run_go_member(context: Context) -> None:
    """A member of the classic protocol, eager or cooperative."""
    settings: dict[str, object] = {
        "group": context.spec.group,
        "strategy": context.spec.options["strategy"],
        "topics": ",".join(context.spec.topics),
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_ms": HEARTBEAT_MS,
    }
    consume(context, _command(context, "member", settings))


def _command(context: Context, kind: str, settings: dict[str, object]) -> list[str]:
    shared = {"bootstrap": context.spec.bootstrap, "client": context.spec.name}
    return command_of(context, settings | shared, kind)
