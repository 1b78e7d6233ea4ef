"""A child process: its lines, its exit code, and its end with its caller."""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace.runtime.child_process import ERROR_BYTES_MAX, run_python


def run(program: str) -> tuple[int, str, list[str]]:
    lines: list[str] = []
    code, errors = asyncio.run(run_python(["-c", program], lines.append))
    return code, errors, lines


def test_lines_exit_code_and_errors_come_back() -> None:
    code, errors, lines = run("import sys; print('a'); print('b'); sys.exit('no')")
    assert (code, errors.strip(), lines) == (1, "no", ["a", "b"])


def test_much_on_stderr_holds_up_nothing_and_is_cut() -> None:
    code, errors, _ = run("import sys; sys.stderr.write('x' * 1_000_000 + 'end')")
    assert (code, len(errors)) == (0, ERROR_BYTES_MAX)
    assert errors.endswith("end")


def test_a_cancelled_caller_ends_the_process() -> None:
    async def scenario() -> int:
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        running = asyncio.create_task(
            run_python(["-c", program], lambda line: started.set_result(int(line)))
        )
        number = await started
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return number

    number = asyncio.run(scenario())
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
