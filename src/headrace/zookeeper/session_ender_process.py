"""Starts the process that ends a dead broker's ZooKeeper session, and keeps it informed.

Invariants: this end of its pipe is closed by `close` alone, after the broker has stopped serving;
everywhere else the kernel closes it, when the process has ended. A pipe is given up for another
only after the process that read it has ended. The process has a session of its own, so that signals
for the broker's process group, SIGKILL among them, do not end it. Without it, a broker's death is
noticed when its session ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.zookeeper.session_ender import NO_SESSION

if TYPE_CHECKING:
    from headrace.runtime.tls import TlsFiles
    from headrace.zookeeper.session_ender import OpenSession

log = logging.getLogger(__name__)

COMMAND: Final = ("-P", "-m", "headrace.zookeeper.session_ender")
MEANT_FOR_THE_BROKER: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""It may take a while to stop, and may be killed meanwhile; then the process ends by itself."""
LOOK_S: Final = 5.0
"""Between two looks whether it still runs."""


class SessionEnder:
    """The process of one broker."""

    def __init__(self, tls: TlsFiles | None) -> None:
        """`tls`: for the connection to ZooKeeper; None: plaintext. Raises OSError."""
        parts = None if tls is None else [None if part is None else str(part) for part in tls]
        self._head = json.dumps(parts).encode() + b"\n"
        self._session = NO_SESSION
        self._pipe = -1
        self.pid = 0
        self._start()

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self.pid = os.posix_spawn(  # noqa: TID251 - a constant command
                sys.executable,
                [sys.executable, *COMMAND],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=MEANT_FOR_THE_BROKER,
            )
        finally:
            os.close(reading)
        self._write(self._head + self._session)

    def note(self, session: OpenSession | None) -> None:
        """The broker's session from now on; None: it has been ended."""
        self._session = NO_SESSION if session is None else session.encode()
        self._write(self._session)

    def _write(self, data: bytes) -> None:
        # Full: the process hangs. Broken: it has died, and `watch` starts another.
        with suppress(BlockingIOError, BrokenPipeError):
            if self._pipe >= 0:
                os.write(self._pipe, data)

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, -1  # the number may soon be another file's
        if pipe >= 0:
            os.close(pipe)

    async def watch(self) -> None:
        """Start another process when this one has ended, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._has_ended():
                continue
            log.warning(
                "the process that reports this broker's death to ZooKeeper (pid %d) has ended: "
                "starting another one",
                self.pid,
            )
            self._close_pipe()
            try:
                self._start()
            except OSError as error:
                log.warning("cannot start it, trying again: %s", error)

    def _has_ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    async def close(self) -> None:
        """The broker has stopped serving. If its session could not be ended because ZooKeeper does
        not answer, the process goes on trying for a while."""
        self._close_pipe()
