"""The environment of every black-box client: its identity, its settings, and its history.

Invariants: a client knows the bootstrap address and nothing else of a broker. It records each
operation before it begins and when it has ended, and reports `fail` only if it is certain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.payload import number_of, value_bytes, value_number
from headrace_verify.history import INFO, INVOKE, NOTE, OK, POLL, SEND, History, now_ns
from headrace_verify.real_broker import addresses_in
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random  # noqa: TID251 - a type

    from headrace.records.batch import BatchHeader


@dataclass(slots=True)
class Spec:
    """A client's parameters, as passed to its process."""

    name: str
    kind: str
    number: int
    """Unique in the run: part of the values it sends."""
    seed: int
    bootstrap: str
    topics: dict[str, int]
    """Name -> partitions."""
    rate_per_s: int
    group: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Context:
    """A running client."""

    def __init__(self, spec: Spec, history: History) -> None:
        self.spec = spec
        self.history = history
        self.rng: Random = seeded(f"{spec.seed} {spec.name}")
        self.over = threading.Event()
        """Set when the run wants no more operations."""
        self.places = [
            (topic, number) for topic, count in spec.topics.items() for number in range(count)
        ]
        self._count = 0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bootstrap addresses, as (host, port)."""
        return addresses_in(self.spec.bootstrap)

    @property
    def number(self) -> int:
        """Unique in the run."""
        return self.spec.number

    def begin_send(
        self, topic: str, part: int, *, again: bool = False, **more: Any
    ) -> tuple[int, bytes]:
        """Allocate a value and record its invocation: its number and its bytes."""
        self._count += 1
        value = value_number(self.spec.number, self._count)
        fields = more | {"again": True} if again else more
        self.history.write(INVOKE, SEND, topic=topic, part=part, value=value, **fields)
        return value, value_bytes(value)

    def end_send(self, kind: str, topic: str, part: int, value: int, **fields: Any) -> None:
        """Record its completion: `offset` if it is stored, else `error`."""
        self.history.write(kind, SEND, topic=topic, part=part, value=value, **fields)

    def polled(
        self, since_ns: int, topic: str, found: Iterable[tuple[int, int, bytes | None]], **more: Any
    ) -> int:
        """Record one poll's records of one topic, as (partition, offset, bytes); returns their
        number."""
        records = [[part, offset, number_of(data)] for part, offset, data in found]
        if records:
            self.history.write(OK, POLL, since=since_ns, topic=topic, recs=records, **more)
        return len(records)

    def note(self, what: str, **fields: Any) -> None:
        """Record further information beside the operations."""
        self.history.write(OK, NOTE, what=what, **fields)

    def gave_up(self, why: object) -> None:
        """Record that the client cannot continue although it should: the run fails."""
        self.note("gave up", error=str(why)[:300])

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the run."""
        self.over.wait(seconds)

    def owned(self, parts: Iterable[tuple[str, int]]) -> list[list[Any]]:
        """Partitions in the format of a history."""
        return [[topic, part] for topic, part in sorted(parts)]


def of_batches(part: int, headers: Sequence[BatchHeader]) -> dict[str, list[list[int]]]:
    """What a poll records of the batches that it has read from a partition."""
    return {
        "epochs": [[part, h.base_offset, h.last_offset + 1, h.leader_epoch] for h in headers],
        "producers": [
            [part, h.base_offset, h.producer_id, h.producer_epoch, h.base_sequence]
            for h in headers
            if h.producer_id >= 0
        ],
    }


class Progress:
    """A group member's state: what it owns, its positions and commits."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.ends: dict[tuple[str, int], int] = {}
        """The position of each owned partition that is not committed yet."""
        self.read_ends: dict[tuple[str, int], int] = {}
        """The position of each owned partition."""
        self.owned: set[tuple[str, int]] = set()
        self.rebalances = 0

    def assigned(self, parts: Sequence[tuple[str, int]], member: str, generation: int) -> None:
        """The member was assigned partitions."""
        context = self._context
        self.rebalances += 1
        self.owned.update(parts)
        context.history.write(
            OK, "assign", group=context.spec.group, member=member, gen=generation,
            parts=context.owned(parts),
        )  # fmt: skip

    def revoked(self, parts: Sequence[tuple[str, int]], *, is_lost: bool = False) -> None:
        """The member's partitions were revoked or lost."""
        context = self._context
        self.rebalances += 1
        for part in parts:
            self.ends.pop(part, None)
            self.read_ends.pop(part, None)
            self.owned.discard(part)
        fields = {"lost": True} if is_lost else {}
        context.history.write(
            OK, "revoke", group=context.spec.group, parts=context.owned(parts), **fields
        )

    def read(self, topic: str, part: int, offset: int) -> None:
        """Record a position; not to be committed if the partition was lost meanwhile."""
        if (topic, part) in self.owned:
            self.ends[topic, part] = self.read_ends[topic, part] = offset + 1

    def begin_commit(
        self, offsets: dict[tuple[str, int], int], member: str, generation: int
    ) -> int:
        """Record the invocation; returns the argument of `end_commit`."""
        listed = [[topic, part, offset] for (topic, part), offset in sorted(offsets.items())]
        return self._context.history.invoke(
            "commit", group=self._context.spec.group, member=member, gen=generation, offs=listed
        )

    def end_commit(self, op: int, kind: str, **fields: Any) -> None:
        """Record the completion."""
        self._context.history.write(kind, "commit", op=op, group=self._context.spec.group, **fields)

    def committed(self, op: int, offsets: dict[tuple[str, int], int], *, is_same: bool) -> None:
        """It was accepted; `is_same`: in the generation recorded at its invocation."""
        self.end_commit(op, OK if is_same else INFO)
        for place, end in offsets.items():
            if self.ends.get(place) == end:
                del self.ends[place]


__all__ = ["Context", "Progress", "Spec", "now_ns"]
