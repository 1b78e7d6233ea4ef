"""The lag of each group, now and over the last hour, whichever brokers know parts of it.

Invariants: knows no protocol; loads no log, and reads no disk: the age of a record that is not in
memory is unknown. Each broker samples what it knows: share groups on the
partitions that it serves, and consumer groups that it coordinates, for which it asks the other
brokers once where the partitions end. Memory is bounded by GROUPS_MAX. A lag in fewer partitions
than the group has is a lower bound, and said to be one. Of a consumer group it is kept if the
others are not loaded anywhere, and not if a broker did not answer: the next sample may be whole.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.group_figures import Ages, first_of, share_lags
from headrace.broker.services.owner_calls import checked, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topics import Topics
    from headrace.errors import HeadraceError
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

INTERVAL_MS: Final = 15_000
SAMPLES_MAX: Final = 3_600_000 // INTERVAL_MS
GROUPS_MAX: Final = 500
"""On one broker, with 4 KiB each."""
TREND_MS: Final = 300_000
UNKNOWN: Final = -1
OTHERS_S: Final = 6.0
"""Longer than a broker waits for the answers of others before it gives its own."""
PARTITIONS_BITS: Final = 16
"""Of a sample, for the partitions in which a share group's lag was counted: LAGS_MAX at most."""
PARTITIONS_MAX: Final = (1 << PARTITIONS_BITS) - 1
Place = tuple[str, int]


class LagPoint(NamedTuple):
    """The lag of a group at one time."""

    at_ms: int
    records: int
    lag_ms: int | None
    """The age of the oldest record that waits, 0 where none does; None: not known."""
    is_partial: bool
    """It is a lower bound."""


class LagNow(NamedTuple):
    """The lag of a group now."""

    group: str
    records: int
    is_partial: bool
    """It is a lower bound."""


class LagPart(NamedTuple):
    """What one broker knows of the lag of a group."""

    records: int = 0
    partitions: int = 0
    """Of a share group: those that are counted. Of a consumer group: those that are not, because no
    broker has loaded them, if others are."""
    is_cut: bool = False
    """Of a consumer group: where some of its partitions end is not known."""
    age_ms: int = 0
    """Of the oldest record that waits, or UNKNOWN."""

    def plus(self, other: LagPart) -> LagPart:
        """The sum, of two brokers or partitions."""
        return LagPart(
            self.records + other.records,
            self.partitions + other.partitions,
            self.is_cut or other.is_cut,
            _oldest([self.age_ms, other.age_ms]),
        )


class Sample(NamedTuple):
    """What one broker keeps of the lag of a group at one time."""

    lag: int
    """Records, and in the lower PARTITIONS_BITS partitions."""
    age_ms: int = UNKNOWN
    """As in `LagPart`."""


class End(NamedTuple):
    """Where a partition begins and ends, and how long records in it have waited."""

    start: int
    high_watermark: int
    ages_ms: dict[int, int]
    """By the offsets that were asked for; UNKNOWN: not in memory, or too many were."""


class KnownLag(NamedTuple):
    """Where a group stands in a partition, as far as a broker has it in memory."""

    topic: str
    partition: int
    offset: int = UNKNOWN
    """UNKNOWN: of a share group, the partition is not loaded."""
    records: int = UNKNOWN
    age_ms: int = UNKNOWN


class Trend(NamedTuple):
    """How a lag has changed."""

    records_per_s: float
    """Negative: the group catches up."""
    span_ms: int


class LagSamples:
    """The samples of one broker. A sample has the number of its interval since 1970, so that those
    of several brokers are added."""

    def __init__(self) -> None:
        self._numbers = array("q", [UNKNOWN]) * SAMPLES_MAX
        """Of the sample at each place."""
        self._kept: dict[str, tuple[array[int], array[int]]] = {}
        """(lags, ages) at each place."""

    def add(self, number: int, samples: Mapping[str, Sample]) -> None:
        """Keep the sample of each group: of those that have a place, and of the others with the
        most lag as far as there is room."""
        place = number % SAMPLES_MAX
        self._numbers[place] = number
        for group, (lags, ages) in list(self._kept.items()):
            lags[place], ages[place] = samples.get(group, Sample(UNKNOWN))
            if max(lags) == UNKNOWN:
                del self._kept[group]
        others = [group for group in samples if group not in self._kept]
        surplus = len(self._kept) + len(others) - GROUPS_MAX
        if surplus > 0:  # a lag that has not changed shows least
            still = [one for one, (lags, _) in self._kept.items() if len({*lags, UNKNOWN}) == 2]
            for group in still[:surplus]:
                del self._kept[group]
        room = GROUPS_MAX - len(self._kept)
        for group in nlargest(room, others, key=lambda one: samples[one].lag):
            lags, ages = (array("q", [UNKNOWN]) * SAMPLES_MAX for _ in Sample._fields)
            lags[place], ages[place] = samples[group]
            self._kept[group] = lags, ages

    def of(self, group: str, number: int) -> dict[int, Sample]:
        """The samples of one group in the hour before the sample `number`, by their numbers."""
        lags, ages = self._kept.get(group, ((), ()))
        return {
            one: Sample(lag, age_ms)
            for one, lag, age_ms in zip(self._numbers, lags, ages, strict=False)
            if lag != UNKNOWN and number - SAMPLES_MAX < one <= number
        }


def packed(part: LagPart) -> int:
    """Records, and in the lower bits partitions, which are a lower bound where there are more."""
    return part.records << PARTITIONS_BITS | min(part.partitions, PARTITIONS_MAX)


class GroupLags:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        topics: Topics,
        groups: GroupCoordinator,
        shares: SharePartitions,
        shared: ConfiguredGroups,
        clock: Clock,
    ) -> None:
        """`shared`: the share groups of the cluster."""
        self._calls = calls
        self._topics = topics
        self._readable = topics.readable
        self._groups = groups
        self._shares = shares
        self._shared = shared
        self._clock = clock
        self._samples = LagSamples()
        calls.offer_of_broker("groups.ends", self._ends_here)
        calls.offer_of_broker("groups.lag_history", self._here)
        calls.offer_of_broker("groups.lags", self._lags_here)
        calls.offer_of_broker("groups.share_places", self._places_here)

    async def run(self) -> None:
        """Take a sample at each interval, until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            await asyncio.sleep((INTERVAL_MS - now_ms % INTERVAL_MS) / 1_000)
            await self.take()

    async def take(self) -> None:
        """Take a sample. Costs about 2 us for each partition of a group, and the ages."""
        number = self._number()
        parts, _is_cut = await self._parts(Ages(self._clock))
        self._samples.add(
            number,
            {
                group: Sample(packed(part), part.age_ms)
                for group, part in parts.items()
                if not part.is_cut or part.partitions
            },
        )

    async def of(self, group_id: str) -> tuple[list[LagPoint], dict[int, HeadraceError]]:
        """(the lag of a group over the last hour, the brokers whose part is missing)."""
        answers = await self._calls.ask_brokers("groups.lag_history", [group_id])
        found, failed = split(answers)
        parts: dict[int, LagPart] = defaultdict(LagPart)
        for samples in found.values():
            for number, value, age_ms in samples:
                records, counted = value >> PARTITIONS_BITS, value & PARTITIONS_MAX
                parts[number] = parts[number].plus(LagPart(records, counted, age_ms=age_ms))
        wanted = self._shared_partitions(group_id)
        points = [
            LagPoint(
                number * INTERVAL_MS,
                part.records,
                None if part.age_ms == UNKNOWN else part.age_ms,
                part.partitions < wanted if wanted else part.partitions > 0,
            )
            for number, part in sorted(parts.items())
        ]
        return points, failed

    async def now(self) -> tuple[list[LagNow], bool, dict[int, HeadraceError]]:
        """(the lag of each group now, the largest first, whether groups are missing, the brokers
        whose part is missing); of one broker's, those of GROUPS_MAX."""
        answers = await self._calls.ask_brokers("groups.lags", [], OTHERS_S)
        found, failed = split(answers)
        parts: dict[str, LagPart] = defaultdict(LagPart)
        for rows, _is_cut in found.values():
            for group, *part in rows:
                parts[group] = parts[group].plus(LagPart(*part))
        lags = [
            LagNow(
                group, one.records, one.is_cut or one.partitions < self._shared_partitions(group)
            )
            for group, one in parts.items()
        ]
        lacks_groups = (
            bool(failed)
            or any(is_cut for _rows, is_cut in found.values())
            or any(
                one not in parts and self._shared_partitions(one)
                for one in self._shared.share_groups()
            )
        )
        return sorted(lags, key=lambda one: (-one.records, one.group)), lacks_groups, failed

    async def of_places(
        self, offsets: Mapping[Place, int]
    ) -> tuple[list[KnownLag], Mapping[int, HeadraceError]]:
        """(where a consumer group with these offsets stands, the brokers that did not answer)."""
        asked = {place: {offset} for place, offset in offsets.items()}
        ends, failed = await self._ends(asked, Ages(self._clock))
        found = []
        for place, offset in offsets.items():
            end = ends.get(place)
            if end is None:
                found.append(KnownLag(*place, offset))
            else:
                lag = max(end.high_watermark - max(offset, end.start), 0)
                found.append(KnownLag(*place, offset, lag, end.ages_ms[offset]))
        return found, failed

    async def of_share_group(
        self, group_id: str
    ) -> tuple[list[KnownLag], Mapping[int, HeadraceError]]:
        """The same of a share group, in all partitions of its topics."""
        answers = await self._calls.ask_brokers("groups.share_places", [group_id])
        rows, failed = split(answers)
        topics = self._readable.consumed(group_id, self._shared.share_topics(group_id))
        found = {
            (topic.name, number): KnownLag(topic.name, number)
            for topic in topics
            for number in range(len(topic.partitions))
        }
        for one in (KnownLag(*row) for part in rows.values() for row in part):
            found[one.topic, one.partition] = one
        return [*found.values()], failed

    def _shared_partitions(self, group_id: str) -> int:
        """How many partitions a share group has; 0: it is a consumer group."""
        topics = self._readable.consumed(group_id, self._shared.share_topics(group_id))
        return sum(len(topic.partitions) for topic in topics)

    def _number(self) -> int:
        return self._clock.now_ms() // INTERVAL_MS

    async def _here(self, asked: Any) -> Any:
        (group_id,) = checked(asked, str)
        return [(one, *kept) for one, kept in self._samples.of(group_id, self._number()).items()]

    async def _places_here(self, asked: Any) -> Any:
        (group_id,) = checked(asked, str)
        ages, served = Ages(self._clock), self._readable.all()
        lags, _is_cut = first_of(
            one
            for one in share_lags(self._shares, served, self._topics.ownership)
            if one.group == group_id
        )
        return [
            KnownLag(one.topic, one.partition, one.offset, one.records,
                     _age_ms(ages, one.log, one.offset) if one.records else 0)
            for one in lags
        ]  # fmt: skip

    async def _lags_here(self, asked: Any) -> Any:
        """[[group, part ...] ..., whether there are more]"""
        checked(asked)
        parts, is_cut = await self._parts()
        rows = nlargest(GROUPS_MAX, parts.items(), key=lambda one: one[1].records)
        return [(group, *part) for group, part in rows], is_cut or len(rows) < len(parts)

    # --- one sample --------------------------------------------------------------------------

    async def _parts(self, ages: Ages | None = None) -> tuple[dict[str, LagPart], bool]:
        """(of each group, what this broker answers for, whether there is more); without `ages`,
        theirs are UNKNOWN."""
        parts: dict[str, LagPart] = defaultdict(LagPart)
        served = self._readable.all()
        shares, is_cut = first_of(share_lags(self._shares, served, self._topics.ownership))
        for lag in shares:
            age_ms = _age_ms(ages, lag.log, lag.offset) if lag.records else 0
            parts[lag.group] = parts[lag.group].plus(LagPart(lag.records, 1, age_ms=age_ms))
        offsets, cut_group = self._offsets()
        wanted: dict[Place, set[int]] = defaultdict(set)
        for places in offsets.values():
            for place, offset in places.items():
                wanted[place].update(() if ages is None else (offset,))
        ends, failed = await self._ends(wanted, ages)
        for group, places in offsets.items():
            known = [(ends[place], offset) for place, offset in places.items() if place in ends]
            lags = [max(end.high_watermark - max(at, end.start), 0) for end, at in known]
            times = [end.ages_ms.get(at, UNKNOWN) for end, at in known]
            unknown = len(places) - len(known)
            unloaded = unknown if known and not failed and group != cut_group else 0
            age_ms = UNKNOWN if unloaded else _oldest(times)
            is_group_cut = unknown > 0 or group == cut_group
            parts[group] = LagPart(sum(lags), unloaded, is_group_cut, age_ms)
        return parts, is_cut or cut_group is not None

    def _offsets(self) -> tuple[dict[str, dict[Place, int]], str | None]:
        """(what consumer groups have committed in topics that exist, the group that may have more,
        if there are too many)."""
        find = self._readable.find
        found: dict[str, dict[Place, int]] = defaultdict(dict)
        known, is_cut = first_of(
            (group_id, one)
            for group_id, one in self._groups.loaded_offsets()
            if (topic := find(one.topic)) is not None and one.topic_id in {None, topic.id}
        )
        for group_id, one in known:
            found[group_id][one.topic, one.partition] = one.offset
        return found, known[-1][0] if is_cut else None

    async def _ends(
        self, places: Mapping[Place, Iterable[int]], ages: Ages | None
    ) -> tuple[dict[Place, End], Mapping[int, HeadraceError]]:
        """(the end of each of these partitions that is loaded, with the ages of these offsets,
        the brokers that did not answer)."""
        wanted: dict[str, list[list[int]]] = defaultdict(list)
        for (name, number), offsets in sorted(places.items()):
            wanted[name].append([number, *sorted(offsets)])
        rows = self._known(wanted, ages)
        here = {(name, number) for name, number, *_ in rows}
        elsewhere = {
            name: left
            for name, asked in wanted.items()
            if (left := [one for one in asked if (name, one[0]) not in here])
        }
        failed: Mapping[int, HeadraceError] = {}
        if elsewhere:
            answers, failed = split(await self._calls.ask_others("groups.ends", [elsewhere]))
            for answer in answers.values():
                rows += answer
        ends = {
            (name, number): End(
                start, end, dict(zip(sorted(places[name, number]), found, strict=True))
            )
            for name, number, start, end, found in rows
        }
        return ends, failed

    async def _ends_here(self, asked: Any) -> Any:
        (wanted,) = checked(asked, dict)
        return self._known(wanted, Ages(self._clock))

    def _known(
        self, wanted: Mapping[str, list[list[int]]], ages: Ages | None
    ) -> list[tuple[str, int, int, int, list[int]]]:
        """Of {topic: [[partition, offset ...] ...]}, what this broker serves: where it begins and
        ends, and the age at each offset."""
        found = []
        for name, asked in wanted.items():
            topic = self._readable.find(name)
            if topic is None:
                continue
            for number, *offsets in asked:
                log = topic.log(number)
                if log is None or not log.is_loaded:
                    continue
                if self._topics.ownership.is_mine(topic, number):
                    times = [_age_ms(ages, log, one) for one in offsets]
                    found.append((name, number, log.log_start_offset, log.high_watermark, times))
        return found


def _age_ms(ages: Ages | None, log: PartitionLog, offset: int) -> int:
    """Of the record at an offset, or after it; 0 at the end of the partition."""
    if max(offset, log.log_start_offset) >= log.high_watermark:
        return 0
    age_s = None if ages is None else ages.of(log, offset)
    return UNKNOWN if age_s is None else round(age_s * 1_000)


def _oldest(ages_ms: list[int]) -> int:
    """Of these, 0 of none; one that is not known could be it."""
    return UNKNOWN if UNKNOWN in ages_ms else max(ages_ms, default=0)


def trend_of(points: list[LagPoint]) -> Trend | None:
    """How the lag has changed in the last TREND_MS, by the first and last point that are whole;
    None: there is one at most."""
    recent = [
        one for one in points if not one.is_partial and one.at_ms > points[-1].at_ms - TREND_MS
    ]
    if len(recent) < 2:
        return None
    span_ms = recent[-1].at_ms - recent[0].at_ms
    grown = recent[-1].records - recent[0].records
    return Trend(round(grown * 1_000 / span_ms, 1), span_ms)
