"""Runs several brokers on one machine: one process each, monitored and restarted.

Invariants: knows processes, not brokers. A worker reports on its standard output that it is ready,
in one line of JSON, and ends when its standard input is closed: so no worker outlives the
supervisor, however that one ended. A worker that dies after serving is restarted at once; one that
repeatedly dies soon after its start, or before it is ready, is restarted with increasing delay. The
others continue meanwhile, and clients find its partitions at the same address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Fatal
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 600
"""Recovery of a large log may take long."""
STOP_TIMEOUT_S = 60
RESTART_DELAYS_S = (0.0, 0.1, 0.5, 1.0, 5.0)
STEADY_S = 5.0
"""A worker that has served this long is healthy: its next death counts as the first. With a larger
value, a few external kills within a minute would look like a worker that cannot run."""


class WorkerFailed(Fatal):
    """A worker did not start: its own message is above this one."""


class RestartDelays:
    """The delay before a dead worker is restarted."""

    def __init__(self) -> None:
        self._deaths = 0

    def after(self, served_s: float) -> float:
        """Seconds to wait after a run that was ready for `served_s`."""
        if served_s >= STEADY_S:
            self._deaths = 0
        delay_s = RESTART_DELAYS_S[min(self._deaths, len(RESTART_DELAYS_S) - 1)]
        self._deaths += 1
        return delay_s


class Addresses(NamedTuple):
    """Where a worker listens, as in the options."""

    kafka: str
    http: str
    admin: str | None = None
    rocketmq: str | None = None


class WorkerProcess:
    """One broker process."""

    def __init__(
        self,
        number: int,
        addresses: Addresses,
        options: Sequence[str],
        environment: Mapping[str, str],
        tasks: Tasks,
    ) -> None:
        """`environment`: more variables of the process."""
        kafka, http, admin, rocketmq = addresses
        self.number = number
        self.kafka = kafka
        """The address of its first listener, once it is ready."""
        self._listeners = kafka
        self.http = http
        self.admin = admin
        self.rocketmq = rocketmq
        self._options = options
        self._environment = environment
        self._tasks = tasks
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid if self._process is not None else -1

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises WorkerFailed."""
        self._process = await asyncio.create_subprocess_exec(  # noqa: TID251 - our own command
            sys.executable,
            "-m",
            "headrace.cli.main",
            *("serve", "--json", "--worker", str(self.number), *self._options),
            *("--kafka", self._listeners, "--http", self.http),
            *(() if self.admin is None else ("--admin-address", self.admin)),
            *(() if self.rocketmq is None else ("--rocketmq", self.rocketmq)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**_without_service_manager(os.environ), **self._environment},
            # Signals of the terminal are for the supervisor, which stops its workers in order.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            if self._process.returncode is None:
                self._process.kill()
            code = await self._process.wait()
            raise WorkerFailed(f"worker {self.number} ended with code {code} before it was ready")
        try:
            ready = json.loads(line)
        except ValueError:
            self._process.kill()
            await self._process.wait()
            raise WorkerFailed(f"worker {self.number} ended in the middle of a line") from None
        # Keep ports that it has picked itself, so that clients find it after a restart.
        self.kafka, self.http, self.admin = ready["kafka"], ready["http"], ready.get("admin")
        self.rocketmq = ready.get("rocketmq")
        self._listeners = ",".join(
            f"{name}://{address}" for name, address in ready["listeners"].items()
        )

    def watch(self) -> None:
        """Restart it whenever it dies."""
        self._tasks.spawn(self._watch(), f"worker {self.number}")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        delays, ready_s = RestartDelays(), loop.time()
        while not self._is_stopping:
            assert self._process is not None
            code = await self._process.wait()
            if self._is_stopping:
                return
            delay_s = delays.after(loop.time() - ready_s)
            log.warning(
                "worker %d ended with code %d: restarting it in %.1f s",
                self.number,
                code,
                delay_s,
            )
            await asyncio.sleep(delay_s)
            try:
                await self.start()
            except (WorkerFailed, OSError) as error:
                log.warning("%s", error)
            ready_s = loop.time()

    def reload(self) -> None:
        """Pass a SIGHUP on."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Ask it to stop and wait; kill it after a timeout."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("worker %d does not stop: killing it", self.number)
            process.kill()
            await process.wait()


def _without_service_manager(environment: Mapping[str, str]) -> dict[str, str]:
    """The service manager knows the supervisor: a worker that is ready is not all of them."""
    own = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}
    return {name: value for name, value in environment.items() if name not in own}


class Supervisor:
    """All workers of one machine."""

    def __init__(
        self,
        addresses: Sequence[Addresses],
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`addresses` of each worker; `options` of `headrace serve`, and what must not be among
        them in `environment`."""
        self._tasks = Tasks()
        self.workers = [
            WorkerProcess(number, own, options, environment or {}, self._tasks)
            for number, own in enumerate(addresses)
        ]

    async def start(self) -> None:
        """Start all workers; the first one alone, since it takes over the data of a stand-alone
        broker.

        Raises WorkerFailed; then none is left running.
        """
        try:
            await self.workers[0].start()
            await asyncio.gather(*(worker.start() for worker in self.workers[1:]))
        except BaseException:
            await self.stop()
            raise
        for worker in self.workers:
            worker.watch()

    def reload(self) -> None:
        """Let all workers read their certificates again."""
        for worker in self.workers:
            worker.reload()

    async def stop(self) -> None:
        """Stop all workers."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
        await self._tasks.close()
