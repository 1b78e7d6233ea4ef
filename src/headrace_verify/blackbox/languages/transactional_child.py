"""Transactional producers in another language: several in one program, controlled as in `child`.

Invariants: as in `child`. One thread sends commands and waits for each response, except those to
sends, which another thread reads.

How it works: each command names its producer by a number; it is created on first use.

    init | begin | flush | commit | abort | close NUMBER    done, or refused: error, again (the same
                                                            call may be retried), dead
    offsets NUMBER GROUP TOPIC:PARTITION:OFFSET ...         done, or refused
    send NUMBER TOPIC PARTITION VALUE BASE64                as in `child`
"""

from __future__ import annotations

import base64
import queue
import threading
from typing import TYPE_CHECKING, Any, Self

from headrace_verify.blackbox.languages.child import Child, ChildExited
from headrace_verify.blackbox.payload import number_of
from headrace_verify.blackbox.transactional import Failed
from headrace_verify.history import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.blackbox.languages.child import Answer
    from headrace_verify.blackbox.transactional import Offsets

PATIENCE_S = 40.0
"""For retriable calls: longer than any fault."""


class Producers:
    """The program, and the callers of its pending commands."""

    def __init__(self, command: Sequence[str]) -> None:
        self._child = Child(command)
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._flying: dict[int, Callable[..., None]] = {}
        """Value -> callback for the end of its send."""
        self._count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def instance(self, timeout_s: float) -> ChildInstance:
        """Create a producer; `timeout_s`: its transaction time-out."""
        self._count += 1
        return ChildInstance(self, self._count, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.__exit__(*error)

    def _listen(self) -> None:
        for answer in self._child.answers():
            if answer["what"] in {"done", "refused"}:
                self._answers.put(answer)
                continue
            ended = self._flying.pop(answer["value"], None)
            if ended is None:
                continue  # in an error state Java's `send` calls the callback and raises as well
            if answer["what"] == "stored":
                ended(answer["offset"])
            else:
                ended(error=answer["error"])
        self._answers.put(None)

    def ask(self, *words: object) -> Answer:
        """Send a command, and wait for its response. Raises ChildExited."""
        self._child.tell(*words)
        answer = self._answers.get()
        if answer is None:
            raise ChildExited("the client's program has exited")
        return answer

    def send(self, data: bytes, ended: Callable[..., None], *words: object) -> None:
        """Send the command to send a value. Raises ChildExited."""
        value = number_of(data)
        self._flying[value] = ended
        self._child.tell("send", *words, value, base64.b64encode(data).decode())


class ChildInstance:
    """See Instance."""

    def __init__(self, producers: Producers, number: int, timeout_s: float) -> None:
        self._producers = producers
        self._number = number
        self.timeout_s = timeout_s

    def _do(self, what: str, *words: object) -> None:
        """Raises Failed, ChildExited."""
        deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
        while True:
            answer = self._producers.ask(what, self._number, *words)
            if answer["what"] == "done":
                return
            if not answer["again"] or now_ns() > deadline_ns:
                raise Failed(answer["error"], may_abort=not answer["dead"])

    def init(self) -> None:
        """See Instance."""
        self._do("init")

    def begin(self) -> None:
        """See Instance."""
        self._do("begin")

    def send(self, topic: str, part: int, data: bytes, ended: Callable[..., None]) -> None:
        """See Instance."""
        self._producers.send(data, ended, self._number, topic, part)

    def flush(self) -> None:
        """See Instance."""
        self._do("flush")

    def send_offsets(self, group: str, offsets: Offsets, metadata: Any) -> None:
        """See Instance."""
        del metadata  # one process reads all partitions, assigned manually
        places = [f"{topic}:{part}:{end}" for (topic, part), end in sorted(offsets.items())]
        self._do("offsets", group, *places)

    def commit(self) -> None:
        """See Instance."""
        self._do("commit")

    def abort(self) -> None:
        """See Instance."""
        self._do("abort")

    def close(self) -> None:
        """See Instance."""
        try:
            self._do("close")
        except Failed:
            pass  # it is closed in any case
