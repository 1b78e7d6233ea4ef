"""Streams that read the available records in limited micro-batches, and then end.

Invariants: replaces `trigger(availableNow=True)`, under which Spark 4.1 runs a Python source for a
single batch. The end is the one at the start: the source pins it (`pinEnd`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def run_available(stream: Any, write: Callable[[Any], Any]) -> Any:
    """Run a stream up to the high watermarks at its start; returns the ended StreamingQuery.

    `stream` is a DataStreamReader of format `headrace` with its options, of which
    `maxOffsetsPerTrigger` bounds each micro-batch; `write` creates the DataStreamWriter, with its
    checkpoint, from the frame. A call after an interruption resumes where the earlier one stopped.
    """
    writer = write(stream.option("pinEnd", "true").load())
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
