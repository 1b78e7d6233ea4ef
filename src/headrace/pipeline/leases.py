"""Leases: what one process of a machine does at a time.

Invariants: the kernel releases a lease when its process dies. Leases avoid wasted and doubled work;
what another machine does is known to the table, or to the job's group, alone.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.pipeline.errors import LeaseHeld

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the lease of a file, whose folder exists. `what`: "x is being written", for the error.

    Raises LeaseHeld immediately.
    """
    with path.open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise LeaseHeld(
                f"{what} by process {holder}. Wait for it, or stop it.", holder=holder
            ) from error
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
        yield
