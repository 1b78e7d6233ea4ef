"""Brokers that may have died, or have, while their partitions have no other owner yet.

Invariants: decides what clients are told, never who owns what: a doubt proves nothing.

A broker's clients lose their connections when it dies, and ask the others for the new leaders at
once. If they are told the former leader or none, librdkafka asks again up to a second later; so the
response waits, up to a limit, until the partitions have been claimed. If it names new leaders and
no longer lists their former broker, librdkafka (2.10 and later) may forget the new leaders and lose
another second; so a broker stays listed for a while after its registration has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.metadata.facts import BrokerFact

SETTLE_S = 1.0
"""Clients wait no longer for the next owners: their other requests wait, too."""
LISTED_S = 3.0


class Departures:
    """What one broker knows of the deaths of others. Brokers are identified by incarnation."""

    def __init__(self) -> None:
        self.doubtful: set[str] = set()
        """Brokers that are registered but may have died."""
        self._owned: Counter[str] = Counter()
        """Partitions by owner."""
        self._unsettled: dict[str, float] = {}
        """Until when clients wait, by the loop's clock."""
        self._left: list[tuple[float, BrokerFact]] = []
        """Brokers that are no longer registered, and until when they are listed."""
        self._settled = asyncio.Event()

    def doubt(self, incarnation: str) -> None:
        """A connection to a registered broker has ended."""
        self.doubtful.add(incarnation)
        if self._owned[incarnation]:
            self._unsettled[incarnation] = self._now_s() + SETTLE_S

    def trust(self, incarnation: str) -> None:
        """A doubtful broker is alive after all."""
        if incarnation in self.doubtful:
            self.doubtful.discard(incarnation)
            self._settle(incarnation)

    def left(self, fact: BrokerFact) -> None:
        """A broker's registration has ended."""
        incarnation = fact.incarnation
        if incarnation is None:
            return
        self.doubtful.discard(incarnation)
        now_s = self._now_s()
        self._left = [one for one in self._left if one[0] > now_s]
        self._left.append((now_s + LISTED_S, fact))
        if self._owned[incarnation]:
            self._unsettled[incarnation] = now_s + SETTLE_S
        else:
            self._settle(incarnation)

    def owner_changed(self, before: str | None, after: str | None) -> None:
        """A partition's owner is another broker, or none."""
        if after is not None:
            self._owned[after] += 1
        if before is not None:
            self._owned[before] -= 1
            if not self._owned[before]:
                del self._owned[before]
                if before not in self.doubtful:
                    self._settle(before)

    def _settle(self, incarnation: str) -> None:
        if self._unsettled.pop(incarnation, None) is not None:
            self._settled.set()

    async def wait_settled(self) -> None:
        """Wait, up to a limit, until all partitions of brokers that died have new owners."""
        while self._unsettled:
            left_s = max(self._unsettled.values()) - self._now_s()
            if left_s <= 0:
                self._unsettled.clear()
                return
            self._settled.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._settled.wait()
            except TimeoutError:
                continue

    def listed(self, live: Iterable[BrokerFact]) -> list[BrokerFact]:
        """The live brokers, and those that left a moment ago, by id."""
        by_id = {fact.id: fact for until_s, fact in self._left if until_s > self._now_s()}
        by_id.update((fact.id, fact) for fact in live)
        return [fact for _, fact in sorted(by_id.items())]

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
