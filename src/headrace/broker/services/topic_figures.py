"""How much is in each topic, how much comes and goes, and how far its groups are behind.

Invariants: knows no protocol; reads what is in memory and loads no log. Each broker is asked once
for what it serves, however many topics, partitions and groups there are: partitions by their
owner, offsets of consumer groups by the coordinator.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.group_figures import first_of, share_lags
from headrace.broker.services.owner_calls import checked, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.errors import HeadraceError
    from headrace.runtime.clock import Clock

SPAN_S: Final = 30
"""A rate is that of the last one to two spans."""


class Rates(NamedTuple):
    """Of one topic, in a second."""

    records_in: float = 0
    bytes_in: float = 0
    bytes_out: float = 0
    """To consumers."""

    def plus(self, other: Rates) -> Rates:
        """The sum, of two brokers."""
        return Rates(*(one + two for one, two in zip(self, other, strict=True)))


@dataclass(slots=True)
class TopicTotals:
    """One topic, as far as its partitions are loaded somewhere."""

    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(log start offset, high watermark)"""
    size_bytes: int = 0
    rates: Rates = field(default_factory=Rates)
    lags: dict[str, int] = field(default_factory=dict)
    """Records, by group."""
    is_partial: bool = False
    """Partitions or brokers are missing: all figures are lower bounds."""
    is_lag_partial: bool = False
    """Lags are lower bounds: for that reason, or because a broker had more than LAGS_MAX."""

    @property
    def records(self) -> int:
        """Between the start offsets and the high watermarks."""
        return sum(end - start for start, end in self.partitions.values())


class TopicRates:
    """The rates of the topics on this broker, from counters that exist anyway."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._marks: list[tuple[int, dict[str, Rates]]] = [(clock.now_ns(), {})]
        """(when, the counters then): the last two."""

    async def run(self) -> None:
        """Let the rates follow the time, until cancelled."""
        while True:
            await asyncio.sleep(SPAN_S)
            self.mark()

    def mark(self) -> None:
        """Start another span. Costs about 1 us for each partition."""
        counted = {name: self._counted(name) for name in self._topics.logs.traffic}
        self._marks = [self._marks[-1], (self._clock.now_ns(), counted)]

    def of(self, name: str) -> Rates:
        """The rates of one topic."""
        then_ns, counted = self._marks[0]
        span_s = max(self._clock.now_ns() - then_ns, 10**9) / 10**9
        before = counted.get(name, Rates())
        grown = zip(self._counted(name), before, strict=True)
        # A topic that was deleted and created again counts from 0.
        return Rates(*(round(max(now - then, 0) / span_s, 1) for now, then in grown))

    def _counted(self, name: str) -> Rates:
        parts = self._topics.logs.traffic.get(name, {}).values()
        return Rates(
            sum(one.in_records for one in parts),
            sum(one.in_bytes for one in parts),
            sum(one.out_bytes for one in parts),
        )


class TopicFigures:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        topics: Topics,
        groups: GroupCoordinator,
        shares: SharePartitions,
        clock: Clock,
    ) -> None:
        self._calls = calls
        self._topics = topics
        self._groups = groups
        self._shares = shares
        self.rates = TopicRates(topics, clock)
        calls.offer_of_broker("topics.figures", self._here)
        calls.offer("queue.redelivered", self._redelivered_here)

    async def of(
        self, names: Sequence[str]
    ) -> tuple[dict[str, TopicTotals], dict[int, HeadraceError]]:
        """(the figures of these topics, the brokers whose part is missing)."""
        if not names:
            return {}, {}
        found, failed = split(await self._calls.ask_brokers("topics.figures", [[*names]]))
        totals = {name: TopicTotals(is_partial=bool(failed)) for name in names}
        is_cut = False
        for partitions, rates, *_lags, is_one_cut in found.values():
            is_cut = is_cut or is_one_cut
            for name, number, start, end, size_bytes in partitions:
                one = totals[name]
                if number not in one.partitions:  # an owner that changes now answers twice
                    one.partitions[number] = start, end
                    one.size_bytes += size_bytes
            for name, rate in rates:
                totals[name].rates = totals[name].rates.plus(Rates(*rate))
        for _partitions, _rates, offsets, shares, _is_cut in found.values():
            for group, name, number, offset in offsets:
                bounds = totals[name].partitions.get(number)
                if bounds is not None:  # otherwise its lag is not known, rather than 0
                    start, end = bounds
                    _add(totals[name].lags, group, max(end - max(offset, start), 0))
            for group, name, records in shares:
                _add(totals[name].lags, group, records)
        for name, one in totals.items():
            topic = self._topics.readable.find(name)
            if topic is not None and len(one.partitions) < len(topic.partitions):
                one.is_partial = True
            one.is_lag_partial = one.is_partial or is_cut
        return totals, failed

    async def redelivered(self, topic: Topic, group_id: str) -> dict[int, int | HeadraceError]:
        """How many unfinished records of each partition a share group got more than once."""
        return await self._calls.ask_partitions("queue.redelivered", topic, [group_id])

    async def _redelivered_here(self, topic: Topic, number: int, asked: Any) -> int:
        (group_id,) = checked(asked, str)
        found = await self._shares.describe(topic, number, [group_id])
        return sum(one.redelivered_records for one in found)

    async def _here(self, asked: Any) -> Any:
        """[partitions, rates, offsets of consumer groups, lags of share groups, whether there are
        more of either] on this broker."""
        (names,) = checked(asked, list)
        topics = self._topics
        find = topics.readable.find
        wanted = {name: topic for name in names if (topic := find(name)) is not None}
        partitions = [
            (name, number, log.log_start_offset, log.high_watermark, log.size_bytes)
            for name, topic in wanted.items()
            for number, log in topic.logs
            if log.is_loaded and topics.ownership.is_mine(topic, number)
        ]
        rates = [(name, self.rates.of(name)) for name in names if name in topics.logs.traffic]
        all_offsets = (
            (group_id, one.topic, one.partition, one.offset)
            for group_id, one in self._groups.loaded_offsets()
            if one.topic in wanted and one.topic_id in {None, wanted[one.topic].id}
        )
        offsets, is_cut = first_of(all_offsets)
        found, is_cut_too = first_of(share_lags(self._shares, wanted.values(), topics.ownership))
        shares: dict[tuple[str, str], int] = defaultdict(int)
        for lag in found:
            shares[lag.group, lag.topic] += lag.records
        lags = [(*queue, records) for queue, records in shares.items()]
        return partitions, rates, offsets, lags, is_cut or is_cut_too


def _add(lags: dict[str, int], group: str, records: int) -> None:
    lags[group] = lags.get(group, 0) + records
