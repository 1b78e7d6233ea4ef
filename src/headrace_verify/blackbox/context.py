"""What every client of the black box is given: who it is, what it may use, and its history.

Invariants: a client knows the bootstrap address and nothing of a broker. It notes each
operation before it begins and when it has ended, and says `fail` only if it is certain.
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


@dataclass(slots=True)
class Spec:
    """A client, as it is handed to its process."""

    name: str
    kind: str
    number: int
    """Of its own in the run: part of the values it sends."""
    seed: int
    bootstrap: str
    topics: dict[str, int]
    """Name -> partitions."""
    rate_per_s: int
    group: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Context:
    """A client at work."""

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
        """The bootstrap addresses, each in two parts."""
        return addresses_in(self.spec.bootstrap)

    @property
    def number(self) -> int:
        """Its own in the run."""
        return self.spec.number

    def begin_send(
        self, topic: str, part: int, *, again: bool = False, **more: Any
    ) -> tuple[int, bytes]:
        """A fresh value that is about to be sent: its number and its bytes."""
        self._count += 1
        value = value_number(self.spec.number, self._count)
        fields = more | {"again": True} if again else more
        self.history.write(INVOKE, SEND, topic=topic, part=part, value=value, **fields)
        return value, value_bytes(value)

    def end_send(self, kind: str, topic: str, part: int, value: int, **fields: Any) -> None:
        """How it ended: `offset` if it is stored, else `error`."""
        self.history.write(kind, SEND, topic=topic, part=part, value=value, **fields)

    def polled(
        self, since_ns: int, topic: str, found: Iterable[tuple[int, int, bytes | None]], **more: Any
    ) -> int:
        """Note what one poll brought of one topic, as (partition, offset, bytes); how many."""
        records = [[part, offset, number_of(data)] for part, offset, data in found]
        if records:
            self.history.write(OK, POLL, since=since_ns, topic=topic, recs=records, **more)
        return len(records)

    def note(self, what: str, **fields: Any) -> None:
        """Something worth reading beside the operations."""
        self.history.write(OK, NOTE, what=what, **fields)

    def gave_up(self, why: object) -> None:
        """A client cannot go on, though it should: the run judges that."""
        self.note("gave up", error=str(why)[:300])

    def pause(self, seconds: float) -> None:
        """Wait, but not behind the end."""
        self.over.wait(seconds)

    def owned(self, parts: Iterable[tuple[str, int]]) -> list[list[Any]]:
        """Partitions as a history writes them."""
        return [[topic, part] for topic, part in sorted(parts)]


class Progress:
    """Where a group's member stands: what it owns, how far it has read and committed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.ends: dict[tuple[str, int], int] = {}
        """Behind the last polled record of each owned partition, where it is not committed yet."""
        self.read_ends: dict[tuple[str, int], int] = {}
        """Behind the last polled record of each owned partition."""
        self.owned: set[tuple[str, int]] = set()
        self.rebalances = 0

    def assigned(self, parts: Sequence[tuple[str, int]], member: str, generation: int) -> None:
        """The member has got partitions."""
        context = self._context
        self.rebalances += 1
        self.owned.update(parts)
        context.history.write(
            OK, "assign", group=context.spec.group, member=member, gen=generation,
            parts=context.owned(parts),
        )  # fmt: skip

    def revoked(self, parts: Sequence[tuple[str, int]], *, is_lost: bool = False) -> None:
        """It has given them up, or lost them."""
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
        """It has polled so far; nothing to commit if it has lost the partition meanwhile."""
        if (topic, part) in self.owned:
            self.ends[topic, part] = self.read_ends[topic, part] = offset + 1

    def begin_commit(
        self, offsets: dict[tuple[str, int], int], member: str, generation: int
    ) -> int:
        """Note the invocation; what `end_commit` needs."""
        listed = [[topic, part, offset] for (topic, part), offset in sorted(offsets.items())]
        return self._context.history.invoke(
            "commit", group=self._context.spec.group, member=member, gen=generation, offs=listed
        )

    def end_commit(self, op: int, kind: str, **fields: Any) -> None:
        """Note how it ended."""
        self._context.history.write(kind, "commit", op=op, group=self._context.spec.group, **fields)

    def committed(self, op: int, offsets: dict[tuple[str, int], int], *, is_same: bool) -> None:
        """It was accepted; `is_same`: in the generation that was noted."""
        self.end_commit(op, OK if is_same else INFO)
        for place, end in offsets.items():
            if self.ends.get(place) == end:
                del self.ends[place]


__all__ = ["Context", "Progress", "Spec", "now_ns"]
