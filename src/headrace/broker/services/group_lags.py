"""The lag of each group, now and over the last hour, whichever brokers know parts of it.

Invariants: knows no protocol; loads no log. Each broker samples what it knows: share groups on the
partitions that it serves, and consumer groups that it coordinates, for which it asks the other
brokers once where the partitions end. Memory is bounded by GROUPS_MAX. A lag that could not be
known whole is not kept, rather than kept as less.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.group_figures import LAGS_MAX, share_lags
from headrace.broker.services.owner_calls import checked, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topics import Topics
    from headrace.errors import HeadraceError
    from headrace.runtime.clock import Clock

INTERVAL_MS: Final = 15_000
SAMPLES_MAX: Final = 3_600_000 // INTERVAL_MS
GROUPS_MAX: Final = 500
"""On one broker, with 2 KiB each."""
TREND_MS: Final = 300_000
UNKNOWN: Final = -1
Place = tuple[str, int]


class LagPoint(NamedTuple):
    """The lag of a group at one time."""

    at_ms: int
    records: int


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
        self._kept: dict[str, array[int]] = {}

    def add(self, number: int, lags: Mapping[str, int]) -> None:
        """Keep the lag of each group: of those that have a place, and of the others with the most
        lag as far as there is room."""
        place = number % SAMPLES_MAX
        self._numbers[place] = number
        for group, values in list(self._kept.items()):
            values[place] = lags.get(group, UNKNOWN)
            if max(values) == UNKNOWN:
                del self._kept[group]
        others = [group for group in lags if group not in self._kept]
        surplus = len(self._kept) + len(others) - GROUPS_MAX
        if surplus > 0:  # a lag that has not changed shows least
            still = [one for one, values in self._kept.items() if len({*values, UNKNOWN}) == 2]
            for group in still[:surplus]:
                del self._kept[group]
        for group in nlargest(GROUPS_MAX - len(self._kept), others, lags.__getitem__):
            self._kept[group] = array("q", [UNKNOWN]) * SAMPLES_MAX
            self._kept[group][place] = lags[group]

    def of(self, group: str, number: int) -> dict[int, int]:
        """The lags of one group in the hour before the sample `number`, by their samples."""
        values = self._kept.get(group, ())
        return {
            one: lag
            for one, lag in zip(self._numbers, values, strict=False)
            if lag != UNKNOWN and number - SAMPLES_MAX < one <= number
        }


class GroupLags:
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
        self._clock = clock
        self._samples = LagSamples()
        calls.offer_of_broker("groups.ends", self._ends_here)
        calls.offer_of_broker("groups.lag_history", self._here)
        calls.offer_of_broker("groups.lags", self._lags_here)

    async def run(self) -> None:
        """Take a sample at each interval, until cancelled."""
        while True:
            now_ms = self._clock.now_ms()
            await asyncio.sleep((INTERVAL_MS - now_ms % INTERVAL_MS) / 1_000)
            await self.take()

    async def take(self) -> None:
        """Take a sample. Costs about 2 us for each partition of a group."""
        number = self._number()
        self._samples.add(number, await self._lags())

    async def of(self, group_id: str) -> tuple[list[LagPoint], dict[int, HeadraceError]]:
        """(the lag of a group over the last hour, the brokers whose part is missing)."""
        answers = await self._calls.ask_brokers("groups.lag_history", [group_id])
        found, failed = split(answers)
        lags: dict[int, int] = defaultdict(int)
        for part in found.values():
            for number, records in part:
                lags[number] += records
        return [LagPoint(number * INTERVAL_MS, lags[number]) for number in sorted(lags)], failed

    async def now(self) -> tuple[dict[str, int], dict[int, HeadraceError]]:
        """(the lag of each group now, the largest first, the brokers whose part is missing); of
        one broker's, those of GROUPS_MAX."""
        found, failed = split(await self._calls.ask_brokers("groups.lags", []))
        lags: dict[str, int] = defaultdict(int)
        for part in found.values():
            for group, records in part:
                lags[group] += records
        return dict(sorted(lags.items(), key=lambda one: (-one[1], one[0]))), failed

    def _number(self) -> int:
        return self._clock.now_ms() // INTERVAL_MS

    async def _here(self, asked: Any) -> Any:
        (group_id,) = checked(asked, str)
        return [*self._samples.of(group_id, self._number()).items()]

    async def _lags_here(self, asked: Any) -> Any:
        checked(asked)
        return nlargest(GROUPS_MAX, (await self._lags()).items(), key=lambda one: one[1])

    # --- one sample --------------------------------------------------------------------------

    async def _lags(self) -> dict[str, int]:
        """Of each group, what this broker answers for, as far as it is known whole."""
        shares: dict[str, int] = defaultdict(int)
        served = self._topics.by_name.values()
        for count, lag in enumerate(share_lags(self._shares, served, self._topics.ownership)):
            if count >= LAGS_MAX:
                shares.clear()  # any of them may have more
                break
            shares[lag.group] += lag.records
        offsets = self._offsets()
        ends = await self._ends({place for places in offsets.values() for place in places})
        for group, places in offsets.items():
            if all(place in ends for place in places):
                known = ((ends[place], offset) for place, offset in places.items())
                shares[group] += sum(max(end - max(at, start), 0) for (start, end), at in known)
        return shares

    def _offsets(self) -> dict[str, dict[Place, int]]:
        """What consumer groups have committed in topics that exist."""
        found: dict[str, dict[Place, int]] = defaultdict(dict)
        group_id = ""
        for count, (group_id, one) in enumerate(
            islice(self._groups.loaded_offsets(), LAGS_MAX + 1)
        ):
            topic = self._topics.by_name.get(one.topic)
            if topic is None or one.topic_id not in {None, topic.id}:
                continue  # of a deleted topic
            found[group_id][one.topic, one.partition] = one.offset
            if count >= LAGS_MAX:
                del found[group_id]  # it may have more
        return found

    async def _ends(self, places: set[Place]) -> dict[Place, tuple[int, int]]:
        """(log start offset, high watermark) of each of these partitions that is loaded."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for name, number in sorted(places):
            wanted[name].append(number)
        found = {(name, number): (start, end) for name, number, start, end in self._known(wanted)}
        elsewhere = {
            name: left
            for name, numbers in wanted.items()
            if (left := [one for one in numbers if (name, one) not in found])
        }
        if elsewhere:
            answers, _failed = split(await self._calls.ask_others("groups.ends", [elsewhere]))
            for answer in answers.values():
                for name, number, start, end in answer:
                    found[name, number] = start, end
        return found

    async def _ends_here(self, asked: Any) -> Any:
        (wanted,) = checked(asked, dict)
        return self._known(wanted)

    def _known(self, wanted: Mapping[str, list[int]]) -> list[tuple[str, int, int, int]]:
        found = []
        for name, numbers in wanted.items():
            topic = self._topics.by_name.get(name)
            if topic is None:
                continue
            for number in numbers:
                log = topic.log(number)
                if log is None or not log.is_loaded:
                    continue
                if self._topics.ownership.is_mine(topic, number):
                    found.append((name, number, log.log_start_offset, log.high_watermark))
        return found


def trend_of(points: list[LagPoint]) -> Trend | None:
    """How the lag has changed in the last TREND_MS, by its first and last point; None: it has one
    point."""
    recent = [one for one in points if one.at_ms > points[-1].at_ms - TREND_MS]
    if len(recent) < 2:
        return None
    span_ms = recent[-1].at_ms - recent[0].at_ms
    grown = recent[-1].records - recent[0].records
    return Trend(round(grown * 1_000 / span_ms, 1), span_ms)
