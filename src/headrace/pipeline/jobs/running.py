"""What a command sees of a job in Spark, how far its tasks are and the errors that it meets, and
how it ends one.

Invariants: Spark passes on an error of a worker or a planner as part of its own message. What ends
a job loads no Spark: it may not have begun.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)
_OURS: Final = re.compile(r"headrace\.pipeline\.errors\.(\w+): (.+)")


def cause_of(error: BaseException) -> str | None:
    """The message of our own error that Spark passes on, or None."""
    found = [
        match
        for match in _OURS.finditer(str(error))
        if isinstance(getattr(errors, match.group(1), None), type)
    ]
    return found[-1].group(2).strip() if found else None


def spark_tasks() -> Callable[[], tuple[int, int]]:
    """What tells how many tasks of this process's session are done, of those of all stages that
    have begun since."""
    stages: dict[int, tuple[int, int]] = {}

    def look() -> tuple[int, int]:
        context = _of_spark("_active_spark_context")
        if context is None:  # not yet, or no more
            return _sum(stages)
        from py4j.protocol import Py4JError

        try:
            tracker = context.statusTracker()
            running = set(tracker.getActiveStageIds())
            for stage in running | {one for one, (done, all_) in stages.items() if done < all_}:
                found = tracker.getStageInfo(stage)
                if found is not None:
                    stages[stage] = (found.numCompletedTasks, found.numTasks)
        # Java is starting, or has ended, which the job itself reports.
        except (Py4JError, OSError, AttributeError):
            pass
        return _sum(stages)

    return look


def _sum(stages: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    return sum(done for done, _ in stages.values()), sum(all_ for _, all_ in stages.values())


def cancel_all() -> None:
    """Cancel what Spark runs for this process now, if anything: the calls for it raise an error."""
    context = _of_spark("_active_spark_context")
    try:
        if context is not None:
            context.cancelAllJobs()
    except Exception as error:  # noqa: BLE001 - Java's, of any kind; it may start or end just now
        _log.debug("jobs could not be cancelled: %s", error)


def _of_spark(attribute: str) -> Any:
    pyspark = sys.modules.get("pyspark")
    return getattr(getattr(pyspark, "SparkContext", None), attribute, None)
