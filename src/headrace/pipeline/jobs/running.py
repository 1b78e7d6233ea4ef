"""What a command does with the errors that a job meets in Spark.

Invariants: text only. Spark passes on an error of a worker or a planner as part of its own message.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.pipeline import errors

_OURS: Final = re.compile(r"headrace\.pipeline\.errors\.(\w+): (.+)")


def cause_of(error: BaseException) -> str | None:
    """The message of our own error that Spark passes on, or None."""
    found = [
        match
        for match in _OURS.finditer(str(error))
        if isinstance(getattr(errors, match.group(1), None), type)
    ]
    return found[-1].group(2).strip() if found else None
