"""Finds out which parts of a read are in object storage, when it is planned.

Invariants: a list is used only if it is of the topic that the read is planned for, and of the
cluster that `bootstrap.servers` names. It says where to look; what is there, its readers verify.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.errors import RequestInvalid, StorageUnavailable
from headrace.log.ledger_objects import LedgerObjects, LedgerPlace
from headrace.pipeline.direct import is_possible
from headrace.pipeline.errors import OptionInvalid, StoreUnavailable
from headrace.pipeline.journal_pages import NotFoundThere, WebAddress
from headrace.records.cluster_ids import are_of_one_cluster, split_prefix
from headrace.records.identifiers import kafka_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.pipeline.cluster import ClusterClient
    from headrace.pipeline.journal_pages import WebConnection
    from headrace.pipeline.options import SourceOptions
    from headrace.pipeline.planning import OffsetRange
    from headrace.pipeline.position import TopicIds

TASK_BYTES: Final = 128 << 20
"""A task ends with the ledger that reaches this, the size that Spark gives to tasks of files."""

ASK_AGAIN_S: Final = 60
"""How long a stream that has read all of a partition in object storage looks for no more there."""

log = logging.getLogger(__name__)

Places = Sequence[LedgerPlace]
_NUMBERS: Final = ("ledger", "base_offset", "end_offset", "leader_epoch", "size_bytes")
_BASE, _END = attrgetter("base_offset"), attrgetter("end_offset")


class ObjectLists:
    """Where the ledgers of a reader's topics are, asked when it plans.

    A stream plans for as long as it runs: what it knows is asked once, and of a partition whose
    next records come after all that object storage has, only every ASK_AGAIN_S.
    """

    def __init__(
        self, options: SourceOptions, cluster: ClusterClient, now_s: Callable[[], float] = monotonic
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._now_s = now_s
        self._cluster_id: str | None = None
        self._prefixes: dict[str, str] = {}
        """What names of objects begin with, by what brokers say that it is."""
        self._ends: dict[tuple[str, int, str], tuple[int, float]] = {}
        """Where object storage ended before a range did, and when, by partition and topic id."""

    def planned(
        self, ranges: Sequence[OffsetRange], topic_ids: TopicIds
    ) -> tuple[list[OffsetRange], dict[tuple[str, int], Places]]:
        """(the ranges, cut between ledgers in object storage; these ledgers, by partition).

        Raises OptionInvalid, BrokerUnavailable, ReadRefused, StoreUnavailable.
        """
        if not is_possible(self._options.client):
            raise OptionInvalid(
                "The option objects needs records that are read without the client library, which"
                " one of the kafka.* options given requires. Remove it, or the option objects."
            )
        listed: dict[tuple[str, int], Places] = {(one.topic, one.partition): () for one in ranges}
        asked = [one for one in ranges if self._may_be_there(one, topic_ids.get(one.topic, ""))]
        if asked:
            assert self._options.http is not None, "the options were checked"
            address, client = self._options.http, self._options.client
            with WebAddress(address, client, self._options.stall_timeout_ms).opened() as web:
                cluster_id = self._checked_cluster(web)
                for piece in asked:
                    listed[piece.topic, piece.partition] = self._found(
                        web, piece, topic_ids.get(piece.topic, ""), cluster_id
                    )
        cut = (_cut(piece, listed[piece.topic, piece.partition]) for piece in ranges)
        return [part for parts in cut for part in parts], listed

    def _may_be_there(self, piece: OffsetRange, topic_id: str) -> bool:
        end, at_s = self._ends.get((piece.topic, piece.partition, topic_id), (0, -inf))
        return piece.start < end or self._now_s() - at_s >= ASK_AGAIN_S

    def _checked_cluster(self, web: WebConnection) -> str:
        if self._cluster_id is None:
            cluster_id = self._cluster.cluster_id()
            web.check_cluster(cluster_id)
            self._cluster_id = cluster_id
        return self._cluster_id

    def _found(
        self, web: WebConnection, piece: OffsetRange, topic_id: str, cluster_id: str
    ) -> Places:
        """The ledgers with records of a range."""
        now_s = self._now_s()
        try:
            places = [*_listed(web, piece, topic_id, cluster_id)]
        except NotFoundThere as error:
            log.warning("%s Brokers are asked for these records.", error)
            places = []
        end = places[-1].end_offset if places else piece.start
        if end < piece.end:
            self._ends[piece.topic, piece.partition, topic_id] = end, now_s
        for place in places:
            if place.prefix not in self._prefixes:
                assert self._options.objects is not None, "a read without it has no list"
                found = _found_prefix(self._options.objects, web, piece, place)
                if found is None:
                    return []  # brokers are asked
                self._prefixes[place.prefix] = found
        return [one._replace(prefix=self._prefixes[one.prefix]) for one in places]


def _listed(
    web: WebConnection, piece: OffsetRange, topic_id: str, cluster_id: str
) -> Iterator[LedgerPlace]:
    """The ledgers with records of a range, in order."""
    offset, next_offset = -1, piece.start
    while offset < next_offset < piece.end:
        offset = next_offset
        page = web.objects(piece.topic, piece.partition, offset)
        prefix = str(page["prefix"])
        is_of_cluster = are_of_one_cluster(split_prefix(prefix)[0], cluster_id)
        if not is_of_cluster or kafka_uuid(UUID(page["topic_id"])) != topic_id:
            return  # without object storage; recreated since, which its tasks will find
        for one in page["objects"]:
            ledger, base, end, epoch, size = (int(one[name]) for name in _NUMBERS)
            place = LedgerPlace(prefix, ledger, base, end, epoch, size, bool(one["is_tabled"]))
            if place.base_offset < piece.end and place.end_offset > piece.start:
                yield place
        next_offset = page.get("next_offset", -1)


def _found_prefix(
    url: str, web: WebConnection, piece: OffsetRange, first: LedgerPlace
) -> str | None:
    """What the names of the cluster's objects begin with. The first ledger that is listed is looked
    for: the wrong store would give no record, and brokers all of them. None: it was deleted after
    it had been listed.

    Raises OptionInvalid, StoreUnavailable.
    """
    try:
        with LedgerObjects(url) as objects:
            if (found := objects.found(first)) is not None:
                return found.prefix
    except RequestInvalid as error:
        raise OptionInvalid(f"The option objects cannot be used: {error}.") from error
    except StorageUnavailable as error:
        raise StoreUnavailable(
            f"Object storage could not be asked for ledger {first.ledger}: {error}. Nothing was"
            " read. Without the option objects, brokers are asked for all records."
        ) from error
    again = web.objects(piece.topic, piece.partition, first.base_offset)["objects"]
    if first.ledger not in [one["ledger"] for one in again]:
        return None
    raise OptionInvalid(
        f"The option objects names {objects.shown}, which does not have ledger {first.ledger} of"
        f" cluster {first.prefix}. Nothing was read. Set it to what the brokers were started with"
        " (--objects), as this machine and all workers reach it.",
        option="objects",
    )


def _cut(piece: OffsetRange, places: Places) -> list[OffsetRange]:
    """The range in parts that end with a ledger, of about TASK_BYTES each."""
    found: list[OffsetRange] = []
    begin, size = piece.start, 0
    for place in places:
        size += place.size_bytes
        if size >= TASK_BYTES and begin < place.end_offset < piece.end:
            found.append(piece._replace(start=begin, end=place.end_offset))
            begin, size = place.end_offset, 0
    return [*found, piece._replace(start=begin)]


def places_of(piece: OffsetRange, places: Places) -> Places:
    """Those of the ledgers that have offsets of a range."""
    first = bisect_right(places, piece.start, key=_END)
    return places[first : bisect_left(places, piece.end, key=_BASE)]
