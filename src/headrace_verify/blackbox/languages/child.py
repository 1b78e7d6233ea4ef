"""A client in another language: a program that a worker starts and controls with lines of text.

Invariants: the program knows Kafka, the worker the history. The worker records an invocation before
it sends the command, and a completion when it receives the result, so a recorded operation may be
longer than the real one, never shorter. The program stops and dies with its worker: it exits when
its standard input is closed, and faults hit the process group (`crew.Client`).

How it works: a command is a line of words; a response is a line of JSON whose `what` is its kind.

    send TOPIC PARTITION VALUE BASE64     stored: value, offset (-1: unknown)
                                          failed: value, code (Kafka's, -1: none), error
    flush                                 flushed, after the responses to all earlier sends
    poll TIMEOUT_MS                       polled: records [[topic, partition, offset, BASE64], ...],
                                          error, if there was one
    commit TOPIC:PARTITION:OFFSET ...     committed; with `error` if it was rejected, or in doubt
    close                                 closed
    noted                                 reply to `assigned`, `revoked`, `lost`: parts, which the
                                          program sends on its own, and waits

A member's responses also have `member` and `generation`: its current ones.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Self

from headrace_verify.blackbox.consumers import (
    COMMIT_PROBABILITY,
    Uncommitted,
    commit_all,
    note_polled,
)
from headrace_verify.blackbox.context import Context, Progress, now_ns
from headrace_verify.blackbox.producers import IN_FLIGHT_MAX, PATIENCE_S, REFUSED, TICK_S, burst
from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.real_broker import die_with_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace_verify.blackbox.consumers import Found

POLL_TIMEOUT_MS = 100
END_TIMEOUT_S = 10
CODECS = ("gzip", "lz4", "zstd")
"""Not snappy: kafka-python, which has no library for it here, would stop at its first batch."""
Answer = dict[str, Any]


def command_of(context: Context, settings: dict[str, object], *words: str) -> list[str]:
    """The command that starts the client's program as this kind, followed by its settings."""
    listed = [f"{name}={value}" for name, value in settings.items()]
    return [*context.spec.options["command"], *words, *listed]


class ChildExited(Exception):
    """The program has exited unexpectedly."""


class Child:
    """The program. One thread may send commands, one may read responses."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_us(),  # noqa: PLW1509 - one call of libc
        )

    def tell(self, *words: object) -> None:
        """Send a command. Raises ChildExited."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"%s\n" % " ".join(map(str, words)).encode())
            self.process.stdin.flush()
        except OSError as error:
            raise self._has_exited() from error

    def receive(self) -> Answer:
        """Return the next response. Raises ChildExited at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._has_exited()
        answer: Answer = json.loads(line)
        return answer

    def answers(self) -> Iterator[Answer]:
        """Iterate over all responses."""
        while True:
            try:
                answer = self.receive()
            except ChildExited:
                return
            yield answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let it exit, or kill it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass  # it has already exited
        self._wait()
        self.process.stdout.close()

    def _wait(self) -> None:
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _has_exited(self) -> ChildExited:
        self._wait()
        return ChildExited(f"the client's program has exited with code {self.process.returncode}")


class _Listener:
    """Records the results of sends, in a separate thread."""

    def __init__(self, context: Context, child: Child) -> None:
        self._context = context
        self._child = child
        self.flying: dict[int, tuple[str, int]] = {}
        """Value -> its destination."""
        self.flushed = threading.Event()
        self.gone = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for answer in self._child.answers():
                if answer["what"] == "flushed":
                    self.flushed.set()
                else:
                    self._ended(answer)
        finally:
            self.gone.set()
            self.flushed.set()

    def _ended(self, answer: Answer) -> None:
        value = answer["value"]
        topic, part = self.flying.pop(value)
        if answer["what"] == "stored":
            self._context.end_send(OK, topic, part, value, offset=answer["offset"])
        else:
            kind = FAIL if answer["code"] in REFUSED else INFO
            self._context.end_send(kind, topic, part, value, error=answer["error"][:200])


def produce(context: Context, command: Sequence[str]) -> None:
    """An idempotent producer in another language. Raises ChildExited."""
    with Child(command) as child:
        _produce(context, child)


def _produce(context: Context, child: Child) -> None:
    listener = _Listener(context, child)
    while not context.over.is_set() and not listener.gone.is_set():
        for _ in range(burst(context) if len(listener.flying) < IN_FLIGHT_MAX else 0):
            topic, part = context.rng.choice(context.places)
            value, data = context.begin_send(topic, part)
            listener.flying[value] = topic, part
            child.tell("send", topic, part, value, base64.b64encode(data).decode())
        context.pause(TICK_S)
    child.tell("flush")
    listener.flushed.wait(PATIENCE_S)
    if listener.flying:
        context.gave_up(f"{len(listener.flying)} records got no result")


class _Member:
    """A group's member: commands, and its own events between them."""

    def __init__(self, context: Context, child: Child) -> None:
        self._child = child
        self.progress = Progress(context)
        self.identity = "", -1

    def ask(self, *words: object) -> Answer:
        """The response to a command; earlier rebalance events are recorded. Raises ChildExited."""
        self._child.tell(*words)
        while True:
            answer = self._child.receive()
            if "member" in answer:
                self.identity = answer["member"], answer["generation"]
            match answer["what"]:
                case "assigned":
                    self.progress.assigned(_pairs(answer), *self.identity)
                case "revoked" | "lost" as what:
                    self.progress.revoked(_pairs(answer), is_lost=what == "lost")
                case _:
                    return answer
            self._child.tell("noted")

    def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        """Commit. Raises Uncommitted, ChildExited."""
        places = [f"{topic}:{part}:{end}" for (topic, part), end in sorted(offsets.items())]
        answer = self.ask("commit", *places)
        if "error" in answer:
            raise Uncommitted(answer["error"])


def consume(context: Context, command: Sequence[str]) -> None:
    """A group member in another language, which commits what it has polled. Raises ChildExited."""
    with Child(command) as child:
        _consume(context, child)


def _consume(context: Context, child: Child) -> None:
    member = _Member(context, child)
    progress = member.progress
    while not context.over.is_set():
        since_ns = now_ns()
        answer = member.ask("poll", POLL_TIMEOUT_MS)
        note_polled(context, progress, since_ns, _by_topic(answer))
        if "error" in answer:
            context.note("poll failed", error=answer["error"][:200])
            context.pause(0.1)
        elif progress.ends and context.rng.random() < COMMIT_PROBABILITY:
            commit_all(progress, member.commit, lambda: member.identity)
    member.ask("close")


def _pairs(answer: Answer) -> list[tuple[str, int]]:
    return [(topic, part) for topic, part in answer["parts"]]


def _by_topic(answer: Answer) -> Found:
    found: Found = {}
    for topic, part, offset, text in answer["records"]:
        data = None if text is None else base64.b64decode(text)
        found.setdefault(topic, []).append((part, offset, data))
    return found
