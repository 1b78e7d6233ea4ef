"""Restarts a job that failed for a transient reason.

Responsibilities: distinguishes transient failures from permanent ones, and waits between restarts.
Knows nothing about the job: it resumes from its own checkpoint or table.

Why: on a busy machine, a Python worker of Spark 4.1 that does not connect back within 10 s (a
constant) fails its task ("Python worker failed to connect back"). Spark retries tasks, but planning
and the commit of a micro-batch run in the driver, where such a failure, or the death of the planner
or committer process, ends the stream.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError, Retriable
from headrace.pipeline import errors

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_PASSING_SPARK_FAILURES = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "Python worker exited unexpectedly",
    "Could not connect to the Python daemon",
    # The driver's own planner or committer process died, or its socket broke.
    "Stream closed",
    "Stream is closed",
    "java.io.EOFException",
    "Connection reset",
    "Broken pipe",
    "Socket closed",
    "Socket is closed",
    "Closed by interrupt",
)
_CAUSES_MAX = 10
_CLIENT_CODE = re.compile(r"KafkaError\{code=(\w+)")
_ERROR_NAME = re.compile(r"headrace\.[a-z_.]*errors\.(\w+)")
_CATALOG_ERROR = re.compile(r"org\.apache\.iceberg\.exceptions\.(\w+)Exception")
_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, HeadraceError)
}


@dataclass(frozen=True)
class RestartPolicy:
    """The maximum number of restarts, and the delay before each, which doubles up to the largest.

    A run that has lasted `steady_ms` resets the count.
    """

    restarts_max: int = 10
    delay_ms: int = 1_000
    delay_ms_max: int = 60_000
    steady_ms: int = 600_000

    def delay_before(self, restart: int) -> int:
        """The delay in milliseconds before restart 1, 2, ..."""
        doubled: int = self.delay_ms << min(restart - 1, 30)
        return min(doubled, self.delay_ms_max)


def is_passing(error: BaseException) -> bool:
    """Return whether a restart may succeed.

    Spark passes on a worker's error as text, so our errors are found by name. An error that is not
    Retriable takes precedence over everything else in that text.
    """
    if isinstance(error, HeadraceError):
        return isinstance(error, Retriable)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    text = "\n".join([str(error), *_java_causes(error)])
    kinds = [_KINDS[name] for name in _ERROR_NAME.findall(text) if name in _KINDS]
    if kinds:
        return all(issubclass(kind, Retriable) for kind in kinds)
    if codes := _CLIENT_CODE.findall(text):
        return all(code in errors.PASSING_CODES for code in codes)
    catalog = set(_CATALOG_ERROR.findall(text))
    if catalog & errors.CATALOG_REFUSALS:
        return False
    if catalog & errors.CATALOG_FAILURES:
        return True
    return any(phrase in text for phrase in _PASSING_SPARK_FAILURES)


def _java_causes(error: BaseException) -> list[str]:
    """What caused an error within Spark: the text of a failed stream leaves out causes without a
    message, such as the EOFException of a process that has died."""
    from py4j.protocol import Py4JError

    found: list[str] = []
    cause: Any = getattr(error, "_origin", None)
    try:
        while cause is not None and len(found) < _CAUSES_MAX:
            found.append(str(cause.toString()))
            cause = cause.getCause()
    except (Py4JError, OSError):  # Java has gone meanwhile
        _log.debug("the causes of %r cannot be read", error, exc_info=True)
    return found


def with_restarts(
    job: Callable[[], Result],
    what: str,
    policy: RestartPolicy = RestartPolicy(),
    wait_ms: Callable[[int], None] = lambda delay_ms: sleep(delay_ms / 1000),
) -> Result:
    """Run `job` until it returns; `what` names it in the log.

    Raises the job's error if it is permanent or LeaseHeld, or if restarts_max is reached.
    """
    restarts = 0
    while True:
        begun_ns = monotonic_ns()
        try:
            return job()
        except Exception as error:
            if isinstance(error, errors.LeaseHeld) or not is_passing(error):
                raise  # another run: whoever started this one decides whether to wait for it
            if (monotonic_ns() - begun_ns) // 1_000_000 >= policy.steady_ms:
                restarts = 0
            restarts += 1
            if restarts > policy.restarts_max:
                _log.error("%s failed %d times in a row; giving up.", what, restarts)
                raise
            delay_ms = policy.delay_before(restarts)
            _log.warning(
                "%s failed with a transient error; restarting in %d ms (restart %d of at most"
                " %d): %s",
                what, delay_ms, restarts, policy.restarts_max, _cause(error),
            )  # fmt: skip
            wait_ms(delay_ms)


def _cause(error: Exception) -> str:
    """Return the line of a long Spark message that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    candidates = (
        line
        for line in lines
        if _ERROR_NAME.search(line) or any(phrase in line for phrase in _PASSING_SPARK_FAILURES)
    )
    return next(candidates, lines[0] if lines else type(error).__name__)
