"""A child process that does one piece of work and does not outlive its caller.

Invariants: no shell; arguments are passed unchanged. If the caller is cancelled, the process gets
SIGTERM, then SIGKILL after a timeout. Its stderr is kept up to a limit.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HELPER_VARIABLE: Final = "HEADRACE_CLIENT_SETTINGS"
"""The client's settings of a command that a broker starts: JSON. May hold secrets."""
END_TIMEOUT_S: Final = 10.0
LINE_BYTES_MAX: Final = 1024 * 1024
ERROR_BYTES_MAX: Final = 16 * 1024


async def run_python(
    arguments: Sequence[str],
    take_line: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run this interpreter with `arguments`; returns (exit code, end of its stderr).

    `take_line` is called with each line of stdout as it arrives. `environment`: more variables of
    the process, for secrets, which arguments would show. Raises OSError if the process cannot be
    started.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        limit=LINE_BYTES_MAX,
        env={**os.environ, **(environment or {})},
    )
    try:
        errors, _ = await asyncio.gather(_tail(process), _lines(process, take_line))
        return await process.wait(), errors
    finally:
        if process.returncode is None:
            await asyncio.shield(_end(process))


async def _lines(process: asyncio.subprocess.Process, take_line: Callable[[str], None]) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        take_line(line.decode(errors="replace").rstrip("\n"))


async def _tail(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    kept = b""
    while data := await process.stderr.read(ERROR_BYTES_MAX):
        kept = (kept + data)[-ERROR_BYTES_MAX:]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
