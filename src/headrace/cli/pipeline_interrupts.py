"""Ctrl-C and SIGTERM in commands of Spark jobs: the job ends in order, the second time at once.

Invariants: nothing is raised in the middle of a job. A call into Java that is left half way gives
its answer to the next call, and a clean-up that is left half way leaves threads behind. So the job
has a thread of its own, in which Spark sets no handler either; the main thread waits for it, and
signals are only counted. What Spark runs is cancelled over another connection, time and again: a
job may be about to begin. The call for it fails then, and the job cleans up as after any failure.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.failures import INTERRUPTED
from headrace.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")

_POLL_S: Final = 0.1
_AGAIN_S: Final = 0.5
_END_S: Final = 3.0
_SHOW_CURSOR: Final = "\x1b[?25h"
REST: Final = "headrace: interrupted. Nothing is lost: the same command completes the job."


class Interruption:
    """How often the running job was told to stop, and what follows from it."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._signals = 0
        self._unit = ""
        self._noticed, self._cancelled, self._over = Event(), Event(), Event()

    def is_wanted(self) -> bool:
        """Whether the job is to stop."""
        return self._signals > 0

    def check(self) -> None:
        """For long work outside of Spark. Raises KeyboardInterrupt if the job is to stop."""
        if self.is_wanted():
            raise KeyboardInterrupt

    def wait_ms(self, delay_ms: int) -> None:
        """Wait, at most until the job is to stop. Raises KeyboardInterrupt then."""
        self._noticed.wait(delay_ms / 1000)
        self.check()

    @contextmanager
    def after(self, unit: str) -> Iterator[None]:
        """Meanwhile the job stops by itself after its round, or what `unit` says, if `is_wanted`:
        what it does then is not cancelled.

        Raises KeyboardInterrupt if the job is to stop already.
        """
        self.check()
        self._unit = unit
        yield
        if not self.is_wanted():
            self._unit = ""

    def guarded(self, job: Callable[[], Result]) -> Callable[[], Result]:
        """The job; an error of it once something is cancelled is the interruption."""

        def run() -> Result:
            self.check()
            self._unit = ""  # an error has left it as it was, and is not one of what was cancelled
            try:
                return job()
            except Exception as error:
                if self._cancelled.is_set():
                    raise KeyboardInterrupt from error
                raise

        return run

    def run(self, job: Callable[[], Result]) -> Result:
        """Run a job, and return or raise as it does. Raises KeyboardInterrupt if it was stopped
        where it does not stop by itself."""
        if current_thread() is not main_thread():
            return job()
        self._reset()
        done: Future[Result] = Future()
        context = click.get_current_context(silent=True)  # a thread has none

        def settle() -> None:
            try:
                with nullcontext() if context is None else context.scope(cleanup=False):
                    done.set_result(job())
            except BaseException as error:  # noqa: BLE001 - raised by `done.result`
                done.set_exception(error)

        own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, handler in own.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._count)
        try:
            thread = Thread(target=settle, name="job", daemon=True)
            thread.start()
            self._follow(thread)
        finally:
            self._over.set()
            for number, handler in own.items():
                signal.signal(number, handler)
        return done.result()

    def _count(self, *_: object) -> None:
        """See signal.signal. No more than this: the main thread may hold any lock."""
        self._signals += 1

    def _follow(self, job: Thread) -> None:
        """Return when the job's thread has ended."""
        while job.is_alive():
            job.join(_POLL_S)
            if self._signals > 1:
                self._end(job)
            elif self._signals and not self._noticed.is_set():
                self._noticed.set()
                until = f" after this {self._unit}" if self._unit else ""
                say(
                    f"headrace: stopping{until}; press Ctrl-C again to stop immediately (nothing is"
                    " lost)."
                )
                Thread(target=self._cancel, name="cancel", daemon=True).start()

    def _cancel(self) -> None:
        cancelled, over = self._cancelled, self._over  # of this run: there may be a next one
        running = importlib.import_module("headrace.pipeline.jobs.running")
        while not over.is_set():
            if not self._unit:
                cancelled.set()
                running.cancel_all()
            over.wait(_AGAIN_S)

    def _end(self, job: Thread) -> None:
        """End Java, upon which the job's call into it fails, and the process if that is not enough:
        what a job leaves then is what it leaves when it is killed."""
        self._cancelled.set()
        self._noticed.set()
        importlib.import_module("headrace.pipeline.session").JAVA.end(_END_S)
        job.join(_END_S)
        if job.is_alive():
            say((_SHOW_CURSOR if sys.stderr.isatty() else "") + REST)
            sys.stdout.flush()
            os._exit(INTERRUPTED)


INTERRUPTION: Final = Interruption()
"""That of this process: it has its signals once."""


def exit_if(is_stopped: Any) -> None:
    """End the command as interrupted, once its result is said."""
    if is_stopped:
        click.get_current_context().exit(INTERRUPTED)
