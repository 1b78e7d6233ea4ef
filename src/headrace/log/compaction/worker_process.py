"""The process that decodes batches for a compaction round: see `workers`.

Invariants: it uses its standard input and output, an in-memory file for retained batches, and opens
only the ledger files that the broker names, for reading. It ends when its input does. Its priority
is lower than the broker's.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import IO, Final

from headrace.runtime import compiled

NICE: Final = 5


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    # Imported after `main` has chosen between compiled and pure Python modules.
    from headrace.log.compaction.worker_service import RoundServer
    from headrace.log.compaction.workers import BODY_BYTES_MAX, HEAD

    served = RoundServer()
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        operation, first, second, size = HEAD.unpack(head)
        if size > BODY_BYTES_MAX or len(body := requests.read(size)) < size:
            return
        answer = served.answer(operation, first, second, body)
        answers.write(
            HEAD.pack(answer.status, answer.first, answer.second, sum(map(len, answer.parts)))
        )
        for part in answer.parts:
            answers.write(part)
        answers.flush()


def main() -> None:
    """Run until the broker ends the process; Ctrl-C in the terminal is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    with suppress(compiled.CoreUnusableError):  # the broker logged it at start-up
        compiled.use()
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the broker has ended


if __name__ == "__main__":
    main()
