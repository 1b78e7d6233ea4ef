"""The figures of each broker of a cluster, and of all together: what they do, whether they are
well, their disks and object storage.

Invariants: each broker answers from its own history and counters; each is asked once for an answer,
and loads no log for it. Counters of object storage and dead letters are since the broker's start.
However many watch, the state of the cluster is measured once after each sample; a broker that does
not answer delays nobody by more than WAIT_S once there was a measurement.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.owner_calls import checked, split
from headrace.errors import PeerVersionDiffers, Retriable
from headrace.http.history import INTERVAL_S, SAMPLES_MAX
from headrace.http.problems import shown_text
from headrace.http.verdict import problem_of
from headrace.runtime.loop_turns import charged_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.services.group_lags import LagNow
    from headrace.broker.services.services import Services
    from headrace.errors import HeadraceError
    from headrace.http.history import History
    from headrace.http.operations import Json
    from headrace.runtime.tasks import Tasks

SPAN: Final = 12
"""Samples over which rates are means: a minute."""
WAIT_S: Final = 1.0
LETTERS: Final = ("copied", "failed", "given_up")


class ClusterState(NamedTuple):
    """What was measured of all brokers."""

    states: Mapping[int, Json]
    """By broker: figures, problems, dead_letters, disk."""
    failed: Mapping[int, HeadraceError]
    """The brokers that do not answer."""
    lags: Sequence[LagNow]
    lacks_groups: bool
    """Whether `lags` may lack groups."""

    def problems(self, here: int, own: Sequence[Json]) -> list[Json]:
        """Of all brokers, each once, with those that have it; `own`: those of this broker now."""
        found: list[tuple[int, Json]] = []
        for broker, state in sorted({**self.states, here: {"problems": own}}.items()):
            found += [(broker, one) for one in state["problems"]]
        for broker, error in sorted(self.failed.items()):
            if not isinstance(error, Retriable) or isinstance(error, PeerVersionDiffers):
                continue  # of another version, or it has no HTTP listener
            found.append((broker, problem_of("broker_unreachable", id=broker, cause=str(error))))
        merged: dict[tuple[str, ...], Json] = {}
        for broker, one in found:
            key = one["code"], one["what"], one["cause"]
            merged.setdefault(key, {**one, "brokers": []})["brokers"].append(broker)
        return [*merged.values()]

    def dead_letters(self) -> Json:
        """How many, since the start of each broker."""
        return {
            name: sum(one["dead_letters"][name] for one in self.states.values()) for name in LETTERS
        }

    def fullest_disk(self) -> Json | None:
        """That of the broker with the least space by size; None: ledgers are not on disks here."""
        disks = [
            {**state["disk"], "broker": broker}
            for broker, state in self.states.items()
            if state["disk"] is not None
        ]
        return min(
            disks, key=lambda one: one["free_bytes"] / max(one["total_bytes"], 1), default=None
        )


class BrokerFigures:
    """See the module."""

    def __init__(
        self,
        services: Services,
        history: History,
        problems: Callable[[], list[Json]],
        tasks: Tasks,
    ) -> None:
        """`problems()`: what is wrong on this broker."""
        self._services = services
        self._history = history
        self._problems = problems
        self._tasks = tasks
        self._measured: ClusterState | None = None
        self._measured_at = -1
        """The sample after which it was."""
        self._measuring: asyncio.Task[ClusterState] | None = None
        services.calls.offer_of_broker("brokers.state", self._here)
        services.calls.offer_of_broker("brokers.history", self._history_here)

    async def of_all(self) -> tuple[dict[int, Json], dict[int, HeadraceError]]:
        """(the figures of each live broker, the brokers that do not answer)."""
        found, failed = await self._states()
        return {broker: state["figures"] for broker, state in found.items()}, failed

    async def of_cluster(self) -> ClusterState:
        """The last measurement, or a new one if it is done in time."""
        if self._measured is not None and self._measured_at == self._history.taken:
            return self._measured
        if self._measuring is None or self._measuring.done():
            self._measuring = self._tasks.start(self._measure(), "figures of the brokers")
        if self._measured is None:
            return await asyncio.shield(self._measuring)
        await asyncio.wait({self._measuring}, timeout=WAIT_S)
        return self._measured

    async def history(self, count_max: int) -> tuple[list[Json], dict[int, HeadraceError]]:
        """(at most so many points of the last hour, rates and levels added over the brokers, the
        brokers whose part is missing)."""
        width_ms = INTERVAL_S * 1_000 * max(-(-SAMPLES_MAX // count_max), 2)
        answers = await self._services.calls.ask_brokers("brokers.history", [width_ms])
        found, failed = split(answers)
        known = [dict(spans) for spans in found.values() if spans]
        if not known:
            return [], failed
        last = min(max(spans) for spans in known)  # of later ones, some brokers are to come
        points = []
        for span in sorted({span for spans in known for span in spans if span <= last}):
            parts = [spans[span] for spans in known if span in spans]
            points.append({**_sum(parts), "at_ms": (span + 1) * width_ms})
        return points, failed

    async def _states(self) -> tuple[dict[int, Json], dict[int, HeadraceError]]:
        return split(await self._services.calls.ask_brokers("brokers.state", []))

    async def _measure(self) -> ClusterState:
        taken = self._history.taken
        states, lags = await asyncio.gather(
            charged_alike(self._states()), charged_alike(self._services.lags.now())
        )
        failed = {**states[1], **lags[2]}
        self._measured = ClusterState(states[0], failed, lags[0], lags[1])
        self._measured_at = taken
        return self._measured

    # --- of this broker ----------------------------------------------------------------------

    async def _history_here(self, asked: Any) -> Any:
        (width_ms,) = checked(asked, int)
        return self._history.spans(max(width_ms, INTERVAL_S * 1_000))

    async def _here(self, asked: Any) -> Json:
        checked(asked)
        services, history = self._services, self._history
        last, found = history.taken - 1, dict[str, Any]()
        if last > history.first:
            found = history.point(last, max(last - SPAN, history.first))
            del found["at_ms"]
        replication, problems = services.replication, self._problems()
        found["problems"] = len(problems)
        found["copies_missing"] = 0 if replication is None else sum(replication.lacking.values())
        found["tier"] = None if services.tiering is None else self._tier()
        letters = services.dead_letters
        return {
            "figures": found,
            "problems": problems,
            "dead_letters": {name: getattr(letters, f"{name}_total") for name in LETTERS},
            "disk": self._disk(),
        }

    def _disk(self) -> Json | None:
        try:
            disk = self._services.topics.disk
            space = None if disk is None else disk.space()
        except OSError:
            return None  # the verdict says so
        if space is None:
            return None
        return {
            "free_bytes": space.free_bytes,
            "total_bytes": space.total_bytes,
            "reserve_bytes": space.reserve_bytes,
            "is_full": space.is_full,
        }

    def _tier(self) -> Json:
        assert self._services.tiering is not None
        found = self._services.tiering.figures()
        counters = found.counters
        return {
            "is_away": found.is_away,
            "problem": shown_text(found.problem) or None,
            "pending_ledgers": found.pending_ledgers,
            "pending_bytes": found.pending_bytes,
            **{name: getattr(counters, name) for name in sorted(counters.__slots__)},
        }


def _sum(points: Sequence[Json]) -> Json:
    """The points of several brokers at one time, added; -1 stands for what is not known."""
    found = {
        name: round(sum(one[name] for one in points if one[name] >= 0), 1) for name in points[0]
    }
    if all(one["disk_free_bytes"] < 0 for one in points):
        found["disk_free_bytes"] = -1
    return found
