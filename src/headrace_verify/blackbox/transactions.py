"""Transactions in a run: orders are written, and copied into bills and parcels, exactly once.

Invariants: orders are written in transactions. Each group of copiers copies all committed orders to
its own two topics, in transactions that also commit its offsets. Consumers read these topics with
read_committed only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.blackbox.committed_reads import (
    ends_of,
    fetch_committed,
    note_stable,
    read_back,
)
from headrace_verify.blackbox.parts import Part, Role
from headrace_verify.blackbox.routing import Connection, Place
from headrace_verify.history import DRAINED, OK, now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace_verify.blackbox.context import Context
    from headrace_verify.blackbox.parts import Clients

NAME = "transactions"
ORDERS: Mapping[str, int] = {"orders": 2}
LIBRARIES = ("librdkafka", "aiokafka", "java")
COPIERS = tuple(f"copies-{library}" for library in LIBRARIES)
"""Their groups."""
POLL_INTERVAL_S = 0.2
CATCH_UP_MAX = 15
"""Times the limit without progress: how long a group may take in all. Copiers on a busy machine
may be half an hour behind after an hour."""


def copies_of(library: str) -> dict[str, int]:
    """What a library's copiers write: name -> partitions."""
    return {f"bills-{library}": 2, f"parcels-{library}": 2}


COPIES = {topic: count for library in LIBRARIES for topic, count in copies_of(library).items()}
TOPICS = {**ORDERS, **COPIES}


ROLES = (
    Role("transactional-writer", "librdkafka-writer", 15, part=NAME, topics=ORDERS),
    Role(
        "aiokafka-writer",
        "aiokafka-writer",
        15,
        library="aiokafka",
        is_quick=False,
        part=NAME,
        topics=ORDERS,
    ),
    *(
        Role(
            name,
            f"{library}-copier",
            20,
            f"copies-{library}",
            "aiokafka" if library == "aiokafka" else None,
            is_quick,
            "java" if library == "java" else None,
            NAME,
            ORDERS,
            {"targets": copies_of(library)},
        )
        for name, library, is_quick in (
            ("librdkafka-copier-a", "librdkafka", True),
            ("librdkafka-copier-b", "librdkafka", False),
            ("aiokafka-copier", "aiokafka", True),
            ("java-copier", "java", False),
        )
    ),
    Role(
        "committed-reader",
        "committed-reader",
        part=NAME,
        topics=TOPICS,
        options={"progress": dict.fromkeys(COPIERS, ORDERS)},
    ),
    *(
        Role(
            f"{library}-committed",
            f"{library}-member",
            0,
            f"committed-{library}",
            "aiokafka" if library == "aiokafka" else None,
            False,
            "java" if library == "java" else None,
            NAME,
            COPIES,
        )
        for library in LIBRARIES
    ),
)


def _prepare(_context: Context) -> None:
    """Needs only the topics."""


def _settle(crew: Clients, context: Context, within_s: float) -> Iterator[str]:
    """Stop the writers, let copiers finish and exit, let members read the copies."""
    settling = _Settling(crew, context, within_s)
    yield from settling.go()
    settling.connection.drop()


class _Settling:
    """How the clients finish."""

    def __init__(self, crew: Clients, context: Context, within_s: float) -> None:
        self._crew = crew
        self._context = context
        self._within_s = within_s
        self.connection = Connection(context)
        self._progress: dict[str, int] = {}
        """Group -> the sum of its committed offsets, as last seen."""

    def go(self) -> Iterator[str]:
        """What does not finish, as text."""
        yield from self._end("-writer")
        yield from self._wait(self._are_all_ended, {"orders": ORDERS}, "has an open transaction")
        yield from self._wait(self._is_read, self._groups("-copier"), "has not copied everything")
        yield from self._end("-copier")
        copied = {name: {name: count} for name, count in COPIES.items()}
        yield from self._wait(self._are_all_ended, copied, "has an open transaction")
        yield from self._wait(self._is_read, self._groups("-member"), "has not read everything")

    def _end(self, kind: str) -> Iterator[str]:
        clients = self._crew.of_part(NAME)
        chosen = [client for client in clients if client.spec.kind.endswith(kind)]
        for name in self._crew.end(chosen, self._within_s):
            yield f"not alive: {name} did not exit"

    def _groups(self, kind: str) -> dict[str, Mapping[str, int]]:
        """Group -> the topics of its members."""
        return {
            client.spec.group: client.spec.topics
            for client in self._crew.of_part(NAME)
            if client.spec.group is not None and client.spec.kind.endswith(kind)
        }

    def _wait(
        self,
        is_true: Callable[[str, Mapping[str, int]], bool],
        of: Mapping[str, Mapping[str, int]],
        otherwise: str,
    ) -> Iterator[str]:
        """Wait until the condition holds for each name and its topics.

        The time limit restarts whenever a group makes progress: on a busy machine, copiers may have
        a large backlog.
        """
        within_ns = int(self._within_s * 1e9)
        began_ns = now_ns()
        end_ns = began_ns + CATCH_UP_MAX * within_ns
        deadline_ns = now_ns() + within_ns
        waiting = dict(of)
        while waiting and now_ns() < min(deadline_ns, end_ns):
            before = dict(self._progress)
            for name, topics in list(waiting.items()):
                try:
                    if is_true(name, topics):
                        del waiting[name]
                except OSError as error:
                    self.connection.failed(error)  # an owner or a coordinator may still be loading
            if self._progress != before:
                deadline_ns = now_ns() + within_ns
            if waiting:
                self._context.pause(POLL_INTERVAL_S)
        waited_s = (now_ns() - began_ns) / 1e9
        why = f"after {waited_s:.0f} s"
        if now_ns() < end_ns:
            why += f", without progress for {self._within_s:.0f} s"
        for name in waiting:
            yield f"not alive: {name} {otherwise} {why}"

    def _are_all_ended(self, _name: str, topics: Mapping[str, int]) -> bool:
        """Whether no transaction holds back readers."""
        for place in _places(topics):
            stable, high_watermark = ends_of(self.connection.wire(place), place)
            if stable != high_watermark:
                return False
        return True

    def _is_read(self, group: str, topics: Mapping[str, int]) -> bool:
        """Whether a group's committed offset is after all committed records."""
        progress = note_stable(self._context, self.connection, group, topics)
        if progress is None:
            return False
        self._progress[group] = sum(progress[place.topic, place.part] for place in _places(topics))
        for place in _places(topics):
            position = max(0, progress[place.topic, place.part])
            if not self._is_end(place, position):
                return False
        self._context.history.write(OK, DRAINED, group=group)
        return True

    def _is_end(self, place: Place, position: int) -> bool:
        """Whether no committed record follows; markers and aborted records may."""
        while True:
            found = fetch_committed(self.connection.wire(place), place, position)
            if found.records:
                return False
            if found.next_offset == position:
                return position >= found.high_watermark
            position = found.next_offset


def _places(topics: Mapping[str, int]) -> Iterable[Place]:
    return (Place(topic, part) for topic, count in topics.items() for part in range(count))


def _read_back(context: Context) -> Iterator[str]:
    return read_back(context, TOPICS)


TRANSACTIONS = Part(
    NAME,
    ROLES,
    TOPICS,
    ("begin ok", "init ok", "transaction ok", "transaction fail", "committed ok", "poll ok"),
    _prepare,
    _settle,
    _read_back,
)
