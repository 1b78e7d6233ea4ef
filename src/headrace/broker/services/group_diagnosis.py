"""Why a group's consumers are slow: a verdict on two looks at the group, and its evidence.

Invariants: pure; knows figures, not where they come from. Findings come in the order in which they
explain a lag, the first of which is the verdict. Each has a sentence, the figures behind it, and
what to do. Nothing is guessed: what the looks do not show is not said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOT_SHARE: Final = 0.6
"""Of the whole lag in one partition, where an even spread would give it half of that at most."""
SHARE: Final = "share"
_REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
Place = tuple[str, int]


class Position(NamedTuple):
    """A group in one partition at one time."""

    offset: int
    end: int

    @property
    def lag(self) -> int:
        """Records that the group has not finished."""
        return max(self.end - self.offset, 0)


@dataclass(slots=True)
class Look:
    """A group at one time."""

    at_ms: int
    state: str
    group_type: str
    members: Sequence[str]
    """Their client ids."""
    positions: Mapping[Place, Position] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of a share group on this broker: delivered, acknowledged, released, timed_out, given_up."""
    in_flight: int = 0
    """In the partition that has most."""
    in_flight_max: int = 0
    """In one partition; 0: unknown."""

    @property
    def lag(self) -> int:
        """In all partitions."""
        return sum(one.lag for one in self.positions.values())


class Finding(NamedTuple):
    """One reason, or what speaks against one."""

    kind: str
    sentence: str
    evidence: dict[str, Any]
    next_step: str
    values: dict[str, Any]
    """The gaps of the sentence, for those who say it in another language."""


SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "no_lag": (
        "The group has no lag: it has finished all records.",
        "nothing needs to be done",
    ),
    "no_members": (
        "The group has no members: its {lag} records are not consumed.",
        "start the group's consumers",
    ),
    "rebalancing": (
        "The group is rebalancing: its members wait for partitions.",
        "look again in a minute; if it goes on, see which members leave and join (restarts)",
    ),
    "idle_members": (
        "{idle} of {members} members have nothing to do.",
        "use at most {partitions} members, or add partitions",
    ),
    "in_flight_at_limit": (
        "{in_flight} messages are in flight, as many as may be: no more are sent.",
        "acknowledge earlier, or raise share.partition.max.record.locks",
    ),
    "locks_expire": (
        "{timed_out} locks expired: consumers take longer than a lock lasts.",
        "raise share.record.lock.duration.ms, extend locks, or receive fewer at once",
    ),
    "redelivered": (
        "Consumers gave {released} of {delivered} messages back.",
        "see why they fail: the consumer's log, and the reasons of its dead letters",
    ),
    "hot_partition": (
        "{percent} % of the lag is in {partition}.",
        "see whether one key has most records there, or its consumer is slower than others",
    ),
    "stopped_partitions": (
        "Nothing was committed in {count} partitions, while others move on.",
        "see whether their consumer is blocked by one message, or is not running",
    ),
    "stopped": (
        "Nothing was committed meanwhile; {lag} records wait.",
        "see the consumer's log, or look again over a longer time if it commits rarely",
    ),
    "catching_up": (
        "The group catches up: it will have finished in about {seconds} s.",
        "wait",
    ),
    "too_slow": (
        "{produced} records a second come, {consumed} are finished.",
        "add consumers (up to the number of partitions), or make processing faster",
    ),
}
"""By kind: the sentence and the next step."""


def _finding(kind: str, evidence: dict[str, Any], **values: Any) -> Finding:
    sentence, step = (one.format(**values) for one in SENTENCES[kind])
    return Finding(kind, sentence, evidence, step, values)


def diagnose(before: Look, now: Look) -> list[Finding]:
    """The findings of two looks, the verdict first; never empty."""
    span_s = max((now.at_ms - before.at_ms) / 1_000, 0.001)
    produced, consumed = _rates(before, now, span_s)
    if now.lag == 0:
        return [_finding("no_lag", {"lag": 0})]
    found = [*_membership(now), *_deliveries(before, now), *_places(before, now)]
    pace = _pace(now, produced, consumed)
    if not (found and found[0].kind == "no_members" and pace.kind == "stopped"):  # one fact
        found.append(pace)
    return found


def _rates(before: Look, now: Look, span_s: float) -> tuple[float, float]:
    """(records produced, records consumed) a second, in the partitions of both looks."""
    if now.group_type == SHARE:  # records are finished in any order: its start says little
        names = ("acknowledged", "given_up")
        finished = sum(now.counts.get(one, 0) - before.counts.get(one, 0) for one in names)
        return max(finished + now.lag - before.lag, 0) / span_s, max(finished, 0) / span_s
    both = now.positions.keys() & before.positions.keys()
    produced = sum(now.positions[one].end - before.positions[one].end for one in both)
    consumed = sum(now.positions[one].offset - before.positions[one].offset for one in both)
    return max(produced, 0) / span_s, max(consumed, 0) / span_s


def _membership(now: Look) -> list[Finding]:
    count = len(now.members)
    evidence = {"members": count, "state": now.state, "lag": now.lag}
    if count == 0 and (now.group_type != SHARE or not now.in_flight):  # HTTP's are members briefly
        return [_finding("no_members", evidence, lag=now.lag)]
    if now.state in _REBALANCING:
        return [_finding("rebalancing", evidence)]
    partitions = len(now.positions)
    if now.group_type != SHARE and count > partitions:
        evidence = {"members": count, "partitions": partitions}
        return [_finding("idle_members", evidence, idle=count - partitions, **evidence)]
    return []


def _deliveries(before: Look, now: Look) -> list[Finding]:
    """What is particular to share groups."""
    found = []
    grown = {name: count - before.counts.get(name, 0) for name, count in now.counts.items()}
    if now.in_flight_max and now.in_flight >= now.in_flight_max:
        evidence = {"in_flight": now.in_flight, "limit": now.in_flight_max}
        found.append(_finding("in_flight_at_limit", evidence, in_flight=now.in_flight))
    if grown.get("timed_out", 0) > 0:
        found.append(_finding("locks_expire", grown, timed_out=grown["timed_out"]))
    delivered = grown.get("delivered", 0)
    if delivered and grown.get("released", 0) * 2 > delivered:
        released = grown["released"]
        found.append(_finding("redelivered", grown, released=released, delivered=delivered))
    return found


def _places(before: Look, now: Look) -> list[Finding]:
    """Whether some partitions differ from the others."""
    lags = {place: one.lag for place, one in now.positions.items()}
    place = max(sorted(lags), key=lambda one: lags[one])
    title, found = f"{place[0]}-{place[1]}", []
    if len(lags) > 1 and lags[place] > max(HOT_SHARE, 2 / len(lags)) * now.lag:
        evidence = {"partition": title, "lag": lags[place], "group_lag": now.lag}
        percent = round(100 * lags[place] / now.lag)
        found.append(_finding("hot_partition", evidence, percent=percent, partition=title))
    if not now.members or now.group_type == SHARE:
        return found
    stopped = [
        f"{name}-{number}"
        for (name, number), one in sorted(now.positions.items())
        if one.lag and one.offset == before.positions.get((name, number), one).offset
    ]
    if stopped and len(stopped) < sum(1 for lag in lags.values() if lag):
        evidence = {"partitions": stopped[:20], "span_ms": now.at_ms - before.at_ms}
        found.append(_finding("stopped_partitions", evidence, count=len(stopped)))
    return found


def _pace(now: Look, produced: float, consumed: float) -> Finding:
    evidence = {
        "lag": now.lag,
        "produced_per_s": round(produced, 1),
        "consumed_per_s": round(consumed, 1),
    }
    if consumed == 0:
        return _finding("stopped", evidence, lag=now.lag)
    if consumed > produced:
        evidence["caught_up_in_s"] = seconds = round(now.lag / (consumed - produced))
        return _finding("catching_up", evidence, seconds=seconds)
    return _finding("too_slow", evidence, produced=round(produced), consumed=round(consumed))
