"""One transaction of a real client in the history, and the interface that a client must implement.

Invariants: a commit is recorded before it is requested. It is `ok` only if the client confirmed it;
once it was requested and failed, its outcome is unknown, even if the client reports a later abort.
A transaction whose commit was never requested is aborted, however it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace_verify.history import BEGIN, COMMIT, FAIL, INFO, INVOKE, OK, TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.blackbox.context import Context

Offsets = dict[tuple[str, int], int]
"""Topic and partition -> a group's position."""


class Failed(Exception):
    """A call of a transactional producer has failed."""

    def __init__(self, error: object, *, may_abort: bool) -> None:
        """`may_abort`: the instance may continue after an abort."""
        super().__init__(str(error)[:300])
        self.may_abort = may_abort


class Instance(Protocol):
    """One instance of a transactional producer. Its methods raise Failed."""

    timeout_s: float
    """The time after which its transaction is aborted."""

    def init(self) -> None:
        """Get an epoch: fences earlier instances, and ends their open transactions."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def send(self, topic: str, part: int, data: bytes, ended: Callable[..., None]) -> None:
        """Send a record; `ended(offset)` or `ended(error=...)` is called at its end."""
        ...

    def flush(self) -> None:
        """Wait until every send has ended."""
        ...

    def send_offsets(self, group: str, offsets: Offsets, metadata: Any) -> None:
        """Commit a group's offsets with the transaction."""
        ...

    def commit(self) -> None:
        """Commit; retries if the client permits."""
        ...

    def abort(self) -> None:
        """Abort."""
        ...

    def close(self) -> None:
        """Close it, even with an open transaction."""
        ...


class Transaction:
    """One transaction of an instance, and its events in the history."""

    def __init__(
        self, context: Context, instance: Instance, name: str, whose: dict[str, str]
    ) -> None:
        """`whose`: transactional `id` and `instance`, as in the event of its `init`."""
        self._context = context
        self._instance = instance
        self._offsets_op: int | None = None
        self.name = name
        self.is_asked = False
        """Whether its commit was requested."""
        self._is_left = False
        context.history.write(OK, BEGIN, txn=name, **whose)

    def send(self, topic: str, part: int, of: tuple[str, int, int] | None = None) -> None:
        """Send a new value; `of`: the record that it copies. Raises Failed."""
        context = self._context
        more: dict[str, Any] = {"txn": self.name}
        if of is not None:
            more["of"] = list(of)
        value, data = context.begin_send(topic, part, **more)

        def ended(offset: int | None = None, error: str = "") -> None:
            if offset is None:
                context.end_send(INFO, topic, part, value, error=error[:200])
            else:
                context.end_send(OK, topic, part, value, offset=offset)

        self._instance.send(topic, part, data, ended)

    def send_offsets(self, group: str, offsets: Offsets, metadata: Any, whose: Any) -> None:
        """Commit a group's offsets with it; `whose`: member and generation. Raises Failed."""
        offs = [[topic, part, offset] for (topic, part), offset in sorted(offsets.items())]
        member, generation = whose
        self._offsets_op = self._context.history.invoke(
            COMMIT, group=group, member=member, gen=generation, offs=offs, txn=self.name
        )
        self._instance.send_offsets(group, offsets, metadata)

    def commit(self) -> None:
        """Commit. Raises Failed."""
        self._instance.flush()
        self.is_asked = True
        self._note(INVOKE, "commit")
        self._instance.commit()
        self._note(OK, "commit")
        self._end_offsets(OK)

    def abort(self) -> None:
        """Abort. Raises Failed."""
        self.leave()
        self._instance.abort()

    def leave(self) -> None:
        """No commit will be requested any more: it is aborted, unless one was."""
        if not self.is_asked and not self._is_left:
            self._is_left = True
            self._note(FAIL, "abort")
        self._end_offsets(INFO if self.is_asked else FAIL)

    def _end_offsets(self, kind: str) -> None:
        if self._offsets_op is not None:
            self._context.history.write(kind, COMMIT, op=self._offsets_op)
            self._offsets_op = None

    def _note(self, kind: str, how: str) -> None:
        self._context.history.write(kind, TRANSACTION, txn=self.name, end=how)
