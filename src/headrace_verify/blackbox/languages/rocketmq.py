"""RocketMQ's official clients for Python, Java, Node.js and Go: how they are started and used.

Invariants: Python's runs in a virtual environment of its own, with the versions and checksums of
`rocketmq_client/requirements.lock`; Java's jars are pinned in `jars.txt` beside it, Node.js's
packages in `node/package-lock.json`, and Go's modules in `go/go.sum`. A client finds brokers by
itself, and repeats what fails as it does for any application: a send may be stored twice, never
lost once it has succeeded. The rest is as in `rocketmq_clients`, whose messages and decisions it
sends.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Retriable
from headrace.java.jars import cache_folder
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.languages import go, java
from headrace_verify.blackbox.languages.cached import made_once
from headrace_verify.blackbox.languages.child import Child, command_of
from headrace_verify.blackbox.payload import number_of
from headrace_verify.blackbox.queue_consumers import (
    QueueConsumer,
    Received,
    is_ordered,
    order_key,
    receive_everywhere,
)
from headrace_verify.blackbox.rocketmq_clients import (
    COMMITTED,
    DELAYED,
    HALF,
    KINDS,
    LOCK_MS,
    MESSAGE_GROUPS,
    MS_NS,
    ORDERED,
    UNDECIDED,
    result_of,
)
from headrace_verify.history import FAIL, INFO, OK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER: Final = Path(__file__).with_name("rocketmq_client")
LOCK: Final = FOLDER / "requirements.lock"
NODE: Final = FOLDER / "node"
INSTALL_TIMEOUT_S = 900
DELAY_S_MAX = 6
RESTART_S = 0.3


class NotInstalled(Retriable):
    """The client could not be installed."""


def find_python(requirements: str) -> Path:
    """The interpreter of an environment with these pinned packages; installs them if it is not
    cached. Raises NotInstalled."""
    digest = hashlib.sha256(f"{sys.version}\n{requirements}".encode()).hexdigest()

    def install(folder: Path) -> None:
        _run("Python", sys.executable, "-m", "venv", str(folder))
        listed = folder / "requirements.lock"
        listed.write_text(requirements)
        words = ("-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(listed))
        _run("Python", str(folder / "bin" / "python"), *words)

    return made_once("python-clients", f"rocketmq-{digest[:16]}", install) / "bin" / "python"


def _run(language: str, *command: str, at: Path | None = None) -> None:
    try:
        subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S, cwd=at
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = str(getattr(error, "stderr", "") or error).strip()[-300:]
        raise NotInstalled(
            f"RocketMQ's client for {language} could not be installed: {output}; check that the"
            " package index can be reached, and try again."
        ) from error


def find_command() -> list[str]:
    """The command that starts Python's program. Raises NotInstalled."""
    return [str(find_python(LOCK.read_text())), str(FOLDER / "client.py")]


def find_java_command() -> list[str]:
    """The command that starts Java's program. Raises as `java.find_command`."""
    logs = f"-Drocketmq.log.root={cache_folder() / 'logs'}"  # by default in the user's home
    return java.find_command(FOLDER / "RocketClient.java", logs)


def find_node_command() -> list[str]:
    """The command that starts Node.js's program; installs its packages if they are not cached.
    Raises NotInstalled."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotInstalled(
            "RocketMQ's client for Node.js needs Node.js with npm on the PATH: install them"
            " (packages nodejs, npm)"
        )
    version = subprocess.check_output([node, "--version"])  # noqa: S603 - our own command
    digest = hashlib.sha256(version + (NODE / "package-lock.json").read_bytes())

    def install(folder: Path) -> None:
        folder.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, folder)
        _run("Node.js", npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", at=folder)

    folder = made_once("node-clients", f"rocketmq-{digest.hexdigest()[:16]}", install)
    return [node, str(NODE / "client.mjs"), str(folder)]


def find_go_command() -> list[str]:
    """The command that starts Go's program. Raises as `go.find_program`."""
    # The library opens a log before the program can say where.
    logs = f"rocketmq.client.logRoot={cache_folder() / 'logs'}"
    return ["env", logs, str(go.find_program(FOLDER / "go", "rocketmq-client"))]


def _start(context: Context) -> Child:
    endpoint = context.spec.options["rocketmq"].replace(",", ";")
    return Child(command_of(context, {}, endpoint, context.spec.group or "-"))


# --- consumers -----------------------------------------------------------------------------------


class OfficialFace:
    """See QueueFace. The client knows the brokers: there is one address to ask."""

    address_count = 1
    locks_ms = (LOCK_MS,)

    def __init__(self, group: str, child: Child) -> None:
        self._group = group
        self._child = child
        self.more: dict[str, Any] = {"together": True} if is_ordered(group) else {}

    def way(self, how: str, wait_ms: int) -> tuple[str, int]:
        """It has no dead letters of its own, and whole seconds."""
        if how == "dead":
            return "accept", 0
        if how == "release":
            return "renew", max(1, -(-wait_ms // 1_000)) * 1_000
        return how, wait_ms

    def _ask(self, *words: object) -> dict[str, Any]:
        self._child.tell(*words)
        return self._child.receive()

    def receive(
        self, at: int, topic: str, count: int, wait_ms: int, lock_ms: int
    ) -> list[Received]:
        """See QueueFace."""
        del wait_ms  # the program's own
        answer = self._ask("receive", topic, count, lock_ms // 1_000)
        if answer["what"] != "received":
            raise ConnectionError(f"receive failed: {answer['error']}")
        found = []
        for receipt, message_group, key, attempt, text in answer["messages"]:
            part, offset, _member = receipt.split(".")
            value = number_of(base64.b64decode(text))
            ordered_by = order_key(self._group, message_group, key)
            found.append(
                Received("", at, topic, int(part), int(offset), value, ordered_by, attempt, receipt)
            )
        return found

    def settle(
        self, at: int, topic: str, ways: Mapping[tuple[str, int], Sequence[Received]]
    ) -> dict[str, bool]:
        """See QueueFace."""
        del at, topic
        results: dict[str, bool] = {}
        for (how, wait_ms), many in ways.items():
            for one in many:
                words = ("ack",) if how == "accept" else ("renew",)
                more = () if how == "accept" else (wait_ms // 1_000,)
                answer = self._ask(*words, one.receipt, *more)
                result = True if answer["what"] == "settled" else result_of(answer["code"])
                if result is not None:
                    results[one.receipt] = result
        return results


def run_rocketmq_library_consumer(context: Context) -> None:
    """Receives as a simple consumer. Raises ChildExited."""
    group = context.spec.group or ""
    with _start(context) as child:
        receive_everywhere(context, QueueConsumer(context, group, OfficialFace(group, child)))


# --- a producer ----------------------------------------------------------------------------------


class _Producer:
    """Sends one message at a time."""

    def __init__(self, context: Context, child: Child) -> None:
        self._context = context
        self._child = child
        self._clock = SystemClock()

    def send(self, kind: str, topic: str, part: int) -> bool:
        """Send one message and decide it; returns whether it was sent."""
        context = self._context
        detail, due = self._drawn(kind)
        value, data = context.begin_send(topic, part, again=True, **due)
        self._child.tell("send", kind, topic, base64.b64encode(data).decode(), detail)
        answer = self._child.receive()
        if answer["what"] != "sent":
            context.end_send(INFO, topic, part, value, error=answer["error"][:200])
            return False
        outcome, more = OK, {"offset": answer["offset"] if kind not in {HALF, DELAYED} else -1}
        if answer.get("end") == "failed" or detail.startswith("check-"):
            outcome, more = INFO, {"error": answer.get("error", "decided when it is asked")[:200]}
        elif detail == "rollback":
            outcome, more = FAIL, {"error": "rolled back"}
        context.end_send(outcome, topic, part, value, **more)
        return True

    def _drawn(self, kind: str) -> tuple[str, dict[str, int]]:
        """(detail, what the history says of the times)"""
        rng = self._context.rng
        if kind == ORDERED:
            return f"g{rng.randrange(MESSAGE_GROUPS)}", {}
        if kind == DELAYED:
            at_ns, at_ms = now_ns(), self._clock.now_ms()
            due_s = at_ms // 1_000 + 1 + rng.randrange(DELAY_S_MAX)
            # The wall clock was read after `at_ns`, and has millisecond resolution.
            return str(due_s), {"due": at_ns + (due_s * 1_000 - at_ms - 1) * MS_NS}
        if kind == HALF:
            decision = "commit" if rng.random() < COMMITTED else "rollback"
            return ("check-" if rng.random() < UNDECIDED else "") + decision, {}
        return "", {}


def run_rocketmq_library_producer(context: Context) -> None:
    """Sends messages of every type. Raises ChildExited."""
    with _start(context) as child:
        producer = _Producer(context, child)
        while not context.over.is_set():
            topic, part = context.rng.choice(context.places)
            is_sent = producer.send(context.rng.choice(KINDS), topic, part)
            context.pause(1 / max(1, context.spec.rate_per_s) if is_sent else RESTART_S)
