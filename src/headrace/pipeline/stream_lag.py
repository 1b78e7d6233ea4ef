"""How far named streams are: a listener that tells callers, and brokers.

Invariants: what is committed is the end of a batch that Spark has finished, so a stream's group is
never ahead of it; a stream neither waits for a commit nor fails with one. Positions stay in Spark's
checkpoint alone: nothing reads these groups back.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.errors import HeadraceError
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.planning import Offsets, total, walk
from headrace.pipeline.position import TOPIC_IDS_KEY, StreamPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

GROUP_PREFIX: Final = "headrace-stream."  # do not change: stored


class BatchSeen(NamedTuple):
    """A finished micro-batch. `lag` is how many offsets its topics had beyond it just after; None
    if no broker said so."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    lag: int | None


class StreamLag(StreamingQueryListener):
    """Commits the ends of each named stream's batches as those of the group `headrace-stream.NAME`,
    whose lag brokers, the console and metrics show. For `spark.streams.addListener`.

    `client` has the settings of a client, such as `bootstrap.servers`; it needs READ on the groups.
    """

    def __init__(
        self, client: Mapping[str, str], on_batch: Callable[[BatchSeen], None] = lambda _: None
    ) -> None:
        self._cluster = ClusterClient(dict(client))
        self._on_batch = on_batch

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """See StreamingQueryListener."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """See StreamingQueryListener."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """See StreamingQueryListener."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Commit the end of the batch, and tell its figures."""
        from confluent_kafka import KafkaException

        progress = event.progress
        ends = [end for source in progress.sources if (end := _end_of(source.endOffset))]
        if not progress.name or not ends:
            return
        lag: int | None = None
        group = GROUP_PREFIX + progress.name
        try:
            lag = sum(total(end, self._cluster.latest(end)) for end in ends)
            for end in ends:
                committing = self._cluster.commit(group, [(*place, "") for place in walk(end)])
                committing.add_done_callback(partial(_tell_refusal, group))
        except (HeadraceError, KafkaException) as error:
            log.warning("The lag of the stream %s is not known: %s", progress.name, error)
        self._on_batch(
            BatchSeen(
                progress.name,
                progress.batchId,
                progress.numInputRows,
                progress.processedRowsPerSecond,
                lag,
            )
        )


def _tell_refusal(group: str, committing: Any) -> None:
    error = committing.exception() or next(
        (part.error for part in committing.result().topic_partitions if part.error), None
    )
    if error is not None:
        log.warning("The position of %s could not be committed: %s", group, error)


def _end_of(text: str | None) -> Offsets:
    """The offsets in the end of a batch; none of another source, which Spark 4.1 does not name."""
    try:
        stored = json.loads(text or "")
    except ValueError:
        return {}
    if not isinstance(stored, dict) or TOPIC_IDS_KEY not in stored:
        return {}
    return StreamPosition.from_stored(stored).offsets
