"""The tasks of a read, and how a worker executes one.

Invariants: Spark imports this module in every worker, so it stays light; a task carries its range
and the id of the topic it was planned for, and nothing else of the plan.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from headrace.pipeline.planning import OffsetRange, split
from headrace.pipeline.position import TopicIds, recreated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.log.ledger_objects import LedgerPlace
    from headrace.pipeline.cluster import ClusterClient
    from headrace.pipeline.object_list import ObjectLists
    from headrace.pipeline.options import SourceOptions

log = logging.getLogger(__name__)


class TopicRange(InputPartition):
    """One Spark task: an offset range, the topic's id if the broker has topic ids, and the ledgers
    of the range that are in object storage."""

    def __init__(
        self, piece: OffsetRange, topic_id: str | None = None, places: Sequence[LedgerPlace] = ()
    ) -> None:
        super().__init__((*piece, tuple(map(tuple, places)), topic_id))

    @property
    def piece(self) -> OffsetRange:
        """The range as a typed value."""
        return OffsetRange(*self.value[:-2])

    @property
    def places(self) -> Sequence[LedgerPlace]:
        """The ledgers as typed values."""
        if not self.value[-2]:
            return ()
        from headrace.log.ledger_objects import LedgerPlace

        return [LedgerPlace(*place) for place in self.value[-2]]

    @property
    def topic_id(self) -> str | None:
        """The topic id for which the range was planned."""
        topic_id: str | None = self.value[-1]
        return topic_id


def object_lists(options: SourceOptions, cluster: ClusterClient) -> ObjectLists | None:
    """What plans the reads of object storage; None without the option objects."""
    if options.objects is None:
        return None
    from headrace.pipeline.object_list import ObjectLists

    return ObjectLists(options, cluster)


def tasks(
    ranges: list[OffsetRange],
    options: SourceOptions,
    topic_ids: TopicIds,
    lists: ObjectLists | None,
) -> list[InputPartition]:
    """Split ranges according to the options' bounds, and between ledgers in object storage.

    With `lists`, raises what its `planned` raises.
    """
    bounds = options.partitions_min, options.records_per_task_max
    if lists is None or not ranges:
        return [TopicRange(one, topic_ids.get(one.topic)) for one in split(ranges, *bounds)]
    from headrace.pipeline.object_list import places_of

    ranges, listed = lists.planned(ranges, topic_ids)
    return [
        TopicRange(one, topic_ids.get(one.topic), places_of(one, listed[one.topic, one.partition]))
        for one in split(ranges, *bounds)
    ]


def read_task(partition: InputPartition | None, options: SourceOptions) -> Iterator[Any]:
    """Yield the records of one task. Spark passes None if there is nothing to read."""
    if partition is None:
        return iter(())
    from headrace.pipeline.fetch import read_range

    assert isinstance(partition, TopicRange), "planned here"
    read = partial(read_range, places=partition.places)
    batches = read_of_topic(partition.piece, partition.topic_id, options, read)
    wanted = filter(len, map(options.row_filter.apply, batches))
    if options.typed is None:
        return wanted
    from headrace.pipeline.typed.columns import values_of

    return map(values_of(options).typed, wanted)


def read_of_topic(
    piece: OffsetRange,
    topic_id: str | None,
    options: SourceOptions,
    read: Callable[[OffsetRange, SourceOptions], Iterator[Any]],
) -> Iterator[Any]:
    """Yield what `read` yields of `piece`, provided that the topic has the planned id.

    Ids are never reused: a topic that has the planned id after the last fetch had it throughout.
    Raises TopicRecreated otherwise; with failOnDataLoss=false, a range of a topic that was deleted
    before the task began is empty.
    """
    from headrace.pipeline.cluster import ClusterClient

    if topic_id is None:
        yield from read(piece, options)
        return
    cluster = ClusterClient(options.client)
    before = {piece.topic: topic_id}
    if not options.fail_on_data_loss:
        found = cluster.topic_id_or_none(piece.topic)
        if found != topic_id:
            log.warning(
                "%s-%d: skipping offsets %d to %d: the topic with id %s was deleted.",
                piece.topic, piece.partition, piece.start, piece.end, topic_id,
            )  # fmt: skip
            return
    yield from read(piece, options)
    found = cluster.topic_id_or_none(piece.topic)
    if found != topic_id:
        raise recreated(
            piece.topic,
            before,
            {piece.topic: found or "unknown (no such topic)"},
            "This happened during the read; start the read again.",
        )
