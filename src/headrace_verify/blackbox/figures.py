"""A run's figures: counts, and the times during which no writes or reads succeeded.

Invariants: pure; one pass over the history. An operation counts for a fault's recovery only if it
was invoked after the fault was healed: pending ones prove nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.schedule import CLIENT_FAULTS
from headrace_verify.history import INVOKE, OK, POLL, SEND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace_verify.blackbox.fault_injection import InjectedFault
    from headrace_verify.history import Event

BIN_MS = 100
ALONE_NS = 900_000_000
"""A fault is isolated if no other fault affected a node or link from its start until this long
after it, nor before a write and a read succeeded again: otherwise the figures would cover both."""


class Tally:
    """Counts and times, gathered while reading a history."""

    def __init__(self) -> None:
        self.operations: dict[str, dict[str, int]] = {}
        """Operation -> kind -> count."""
        self.clients: dict[str, dict[str, int]] = {}
        """Client -> `operation kind` -> count."""
        self.gave_up: list[str] = []
        self.records_read = 0
        self.writes: list[tuple[int, int]] = []
        """(invoked, acknowledged) in ns, in the order of acknowledgement."""
        self.reads = array("q")
        """When polls returned records, in ns; clients poll continuously."""
        self._invoked: dict[int, int] = {}

    def passing(self, events: Iterable[Event]) -> Iterator[Event]:
        """Pass the events on, and count them."""
        for event in events:
            self._count(event)
            yield event

    def _count(self, event: Event) -> None:
        operation, kind, at_ns = event["f"], event["k"], event["t"]
        client = event["p"].partition("~")[0]
        by_kind = self.operations.setdefault(operation, {})
        by_kind[kind] = by_kind.get(kind, 0) + 1
        of_client = self.clients.setdefault(client, {})
        key = f"{operation} {kind}"
        of_client[key] = of_client.get(key, 0) + 1
        if operation == SEND:
            if kind == INVOKE:
                self._invoked[event["value"]] = at_ns
            elif kind == OK:
                invoked_ns = self._invoked.pop(event["value"], None)
                if invoked_ns is not None:
                    self.writes.append((invoked_ns, at_ns))
        elif operation == POLL:
            self.records_read += len(event["recs"])
            if not event.get("final"):
                self.reads.append(at_ns)
        elif event.get("what") == "gave up":
            self.gave_up.append(f"{event['p']}: {event['error']}")


def outages(tally: Tally, injected: Sequence[InjectedFault]) -> list[dict[str, Any]]:
    """For each fault: how long no acknowledgement and no read occurred around it, and after its
    healing.

    `write_gap_ms` is the longest time without an acknowledgement from the fault's start to the
    first write invoked after its healing; `write_after_ms` is the time from the healing to that
    write's end. None: there was none before the run's end.
    """
    times = [done for _, done in tally.writes]
    found = []
    for episode in injected:
        outage = _outage(tally, times, episode)
        until_ns = episode.healed_ns + max(ALONE_NS, _recovery_ns(outage))
        outage["is_alone"] = not any(
            other is not episode
            and other.fault.kind not in CLIENT_FAULTS
            and other.began_ns < until_ns
            and other.healed_ns > episode.began_ns
            for other in injected
        )
        found.append(outage)
    return found


def _recovery_ns(outage: dict[str, Any]) -> int:
    return max(outage["write_after_ms"] or 0, outage["read_after_ms"] or 0) * 1_000_000


def _outage(tally: Tally, times: list[int], episode: InjectedFault) -> dict[str, Any]:
    found: dict[str, Any] = {
        "fault": episode.fault.kind,
        "target": episode.target,
        "lasted_ms": (episode.healed_ns - episode.began_ns) // 1_000_000,
    }
    writes = tally.writes
    first = bisect_left(times, episode.healed_ns)
    ended = next((done for began, done in writes[first:] if began >= episode.healed_ns), None)
    found["write_after_ms"] = None if ended is None else (ended - episode.healed_ns) // 1_000_000
    found["write_gap_ms"] = _gap_ms(times, episode.began_ns, ended)
    reads = tally.reads
    place = bisect_left(reads, episode.healed_ns)
    read = reads[place] if place < len(reads) else None
    found["read_after_ms"] = None if read is None else (read - episode.healed_ns) // 1_000_000
    found["read_gap_ms"] = _gap_ms(reads, episode.began_ns, read)
    return found


def _gap_ms(times: Sequence[int], since_ns: int, until_ns: int | None) -> int | None:
    """The longest time between two neighbours, from the last before `since_ns` on."""
    if until_ns is None:
        return None
    place = max(0, bisect_left(times, since_ns) - 1)
    longest, last = 0, None
    while place < len(times) and (last is None or last < until_ns):
        at_ns = times[place]
        if last is not None:
            longest = max(longest, at_ns - max(last, since_ns))
        last = at_ns
        place += 1
    return longest // 1_000_000


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By kind of fault: count, and the worst and 99th percentile of each figure.

    A kind's figures cover its isolated faults; `all` covers every fault.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by_kind.setdefault(one["fault"], []).append(one)
    lines = []
    for kind, of_kind in [*sorted(by_kind.items()), ("all", list(found))]:
        outages_ = of_kind
        line: dict[str, Any] = {"fault": kind, "count": len(outages_)}
        if kind != "all":
            outages_ = [one for one in outages_ if one["is_alone"]]
            line["alone"] = len(outages_)
        for name in ("write_gap_ms", "write_after_ms", "read_gap_ms", "read_after_ms"):
            values = sorted(one[name] for one in outages_ if one[name] is not None)
            line[f"{name}_max"] = values[-1] if values else None
            line[f"{name}_p99"] = values[_p99(len(values))] if values else None
        lines.append(line)
    return lines


def _p99(count: int) -> int:
    return min(count - 1, (count * 99 + 99) // 100 - 1)


def availability(tally: Tally, begun_ns: int, ended_ns: int) -> tuple[list[int], list[int]]:
    """Writes acknowledged and polls answered per bin of 100 ms."""
    count = max(1, (ended_ns - begun_ns) // (BIN_MS * 1_000_000) + 1)
    writes, reads = [0] * count, [0] * count
    for times, bins in (((done for _, done in tally.writes), writes), (tally.reads, reads)):
        for at_ns in times:
            place = (at_ns - begun_ns) // (BIN_MS * 1_000_000)
            if 0 <= place < count:
                bins[place] += 1
    return writes, reads
