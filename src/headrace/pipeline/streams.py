"""Streams that read what is there now, in limited micro-batches, and end.

Invariants: for what `trigger(availableNow=True)` cannot do in Spark 4.1, which runs a Python source
under it for a single batch. The end is the one at the start: the source pins it (`pinEnd`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def run_available(stream: Any, write: Callable[[Any], Any]) -> Any:
    """Run a stream up to the high watermarks of its start; the StreamingQuery, which has ended.

    `stream` is a DataStreamReader of format `headrace` with its options, of which
    `maxOffsetsPerTrigger` bounds each micro-batch; `write` makes the DataStreamWriter, with its
    checkpoint, from the frame. A call after an interrupted one goes on where that one stopped.
    """
    writer = write(stream.option("pinEnd", "true").load())
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
