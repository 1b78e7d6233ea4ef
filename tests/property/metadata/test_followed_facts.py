"""Brokers that follow facts of names that come and go: whatever they see late, at once or not at
all, each applies the states of a name in the order in which they were stored, and ends with the
store's. No change replaces another state than the one with content that it was decided on.

The store is one log of changes. Each broker's server follows it with a lag of its own; what the
server answers and reports reaches the broker in that order, as ZooKeeper promises. Between two
sweeps of a broker is EMPTY_KEPT_S: what was under way, or on its way, at the end of the one is over
at the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.ownership.metadata_cache import MetadataCache
from headrace.errors import HeadraceError, MetadataUnavailable
from headrace.metadata.followed_facts import FollowedFacts
from headrace.metadata.store import ABSENT, MetadataEntry
from headrace.metadata.watches import Watches, next_version
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

PREFIX = "/names/"
NAMES = ("a", "b")
BROKERS = 3
EMPTY = b""
State = tuple[int, bytes] | None
"""Version and value."""


class Log:
    """What was stored: (key, state) in order."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, State]] = []
        self.step = 0
        self.lost: list[str] = []
        """States that were replaced unseen."""

    def state(self, key: str, upto: int | None = None) -> State:
        for changed, state in reversed(self.changes[:upto]):
            if changed == key:
                return state
        return None


class LateStore:
    """A broker's session: its server has applied `seen` changes; `outbox` is on its way here."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.seen = 0
        self.outbox: deque[Callable[[], None]] = deque()
        self.basis = EMPTY
        """The value on which the change was decided that is stored next."""
        self._watches = Watches()

    def advance(self) -> bool:
        """The server applies the next change, and reports it."""
        if self.seen == len(self.log.changes):
            return False
        key, _ = self.log.changes[self.seen]
        self.seen += 1
        self.outbox.append(lambda: self._watches.notify([key]))
        return True

    def deliver(self) -> bool:
        if not self.outbox:
            return False
        self.outbox.popleft()()
        return True

    def _entry(self, key: str) -> MetadataEntry | None:
        state = self.log.state(key, self.seen)
        return None if state is None else MetadataEntry(key, state[1], state[0])

    async def _answer(self, found: object, error: HeadraceError | None = None) -> object:
        future = asyncio.get_running_loop().create_future()
        self.outbox.append(
            lambda: future.set_result(found) if error is None else future.set_exception(error)
        )
        return await future

    async def get(self, key: str) -> MetadataEntry | None:
        return await self._answer(self._entry(key))  # type: ignore[return-value]

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        assert prefix == PREFIX
        found = [self._entry(PREFIX + name) for name in NAMES]
        return [entry for entry in found if entry is not None]

    async def put(self, key: str, value: bytes, expected_version: int) -> int:
        return await self._write(key, value, expected_version)

    async def delete(self, key: str, expected_version: int) -> None:
        self.basis = EMPTY
        await self._write(key, None, expected_version)

    async def _write(self, key: str, value: bytes | None, expected: int) -> int:
        state = self.log.state(key)
        error, version = None, ABSENT
        try:
            version = next_version(key, ABSENT if state is None else state[0], expected)
            # What was decided on an empty fact may meet a later one: see decision 76.
            if state is not None and state[1] != self.basis != EMPTY:
                self.log.lost.append(f"{state} of {key} by {value!r}, decided on {self.basis!r}")
            self.log.changes.append((key, None if value is None else (version, value)))
        except HeadraceError as conflict:
            error = conflict
        while self.advance():  # an answer follows what it depends on
            pass
        return await self._answer(version, error)  # type: ignore[return-value]

    def watch(self, prefix: str) -> AsyncIterator[str]:
        return self._watches.add(prefix)


class Broker:
    """Follows the facts, and notes what it applies."""

    def __init__(self, log: Log, tasks: Tasks) -> None:
        self.store = LateStore(log)
        self.facts = FollowedFacts(self.store, PREFIX, "a name", self.apply)  # type: ignore[arg-type]
        self.applied: dict[str, list[bytes]] = {PREFIX + name: [] for name in NAMES}
        self.is_late = False
        self.tasks = tasks
        self.swept_at = self.swept_upto = 0
        """At which step its last sweep ended, and how much was stored then."""
        self.sweeps = False
        self._under_way: dict[object, int] = {}
        """What it does, and at which step it began."""

    def is_behind(self, other: Broker) -> bool:
        """Whether it does what it began, or does not see what was stored, before another one's
        last sweep."""
        is_late = self.store.seen < other.swept_upto
        return is_late or any(begun < other.swept_at for begun in self._under_way.values())

    def _spawn(self, work: Coroutine[None, None, None], step: int) -> None:
        async def run() -> None:
            try:
                await work
            finally:
                del self._under_way[work]

        self._under_way[work] = step
        self.tasks.spawn(run(), "a change or a sweep")

    async def start(self) -> None:
        cache = MetadataCache(
            self.store,  # type: ignore[arg-type]
            PREFIX, self.facts.apply, lambda: None, self.tasks, None, self.facts.turns,
        )  # fmt: skip
        await cache.start()

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        value = EMPTY if entry is None else entry.value
        self.facts.note(key, entry, is_empty=value == EMPTY)
        if self.applied[key][-1:] != [value]:
            self.applied[key].append(value)

    def change(self, name: str, value: bytes, step: int = 0) -> None:
        def decide(entry: MetadataEntry | None) -> bytes:
            self.store.basis = EMPTY if entry is None else entry.value
            return value

        async def changing() -> None:
            with suppress(MetadataUnavailable):  # others were faster, ten times
                await self.facts.change(PREFIX + name, decide)

        self._spawn(changing(), step)

    def sweep(self, step: int = 0) -> None:
        async def sweeping() -> None:
            await self.facts.sweep(lambda: True)
            self.swept_at, self.sweeps = self.store.log.step, False
            self.swept_upto = len(self.store.log.changes)

        if not self.sweeps:
            self.sweeps = True
            self._spawn(sweeping(), step)


async def _turn() -> None:
    for _ in range(12):  # of what is ready now
        await asyncio.sleep(0)


async def _catch_up(brokers: Sequence[Broker]) -> None:
    while any([one.store.advance() or one.store.deliver() for one in brokers]):  # noqa: C419 -- each
        await _turn()


def _is_in_order(applied: Sequence[bytes], stored: Sequence[bytes]) -> bool:
    """Whether what was applied is a subsequence of what was stored."""
    rest = iter(stored)
    return all(value in rest for value in applied)


STEP = st.tuples(
    st.sampled_from(["set", "clear", "see", "deliver", "burst", "lag", "sweep", "sweep"]),
    st.integers(0, BROKERS - 1),
    st.sampled_from(NAMES),
)


async def _run(steps: Sequence[tuple[str, int, str]]) -> None:
    log, tasks = Log(), Tasks()
    brokers = [Broker(log, tasks) for _ in range(BROKERS)]
    try:
        for broker in brokers:
            await broker.start()
        for count, (step, at, name) in enumerate(steps):
            broker, log.step = brokers[at], count
            if step in {"set", "clear"}:
                broker.change(name, b"%d" % count if step == "set" else EMPTY, count)
            elif step == "see":
                broker.store.advance()
            elif step == "deliver":
                broker.store.deliver()
            elif step == "burst":  # all in one segment: nothing runs in between
                while broker.store.deliver():
                    pass
            elif step == "lag":
                broker.is_late = not broker.is_late
            else:
                for other in brokers if not broker.sweeps else ():
                    while other.is_behind(broker):
                        await _catch_up([other])
                broker.sweep(count)
            await _turn()
            await _catch_up([one for one in brokers if not one.is_late])
        for _ in range(3):  # of which the second deletes what is empty
            await _catch_up(brokers)
            brokers[0].sweep()
            await _turn()
        _check(log, brokers)
    finally:
        await tasks.close()


def _check(log: Log, brokers: Sequence[Broker]) -> None:
    assert not log.lost
    for key in (PREFIX + name for name in NAMES):
        states = [state for changed, state in log.changes if changed == key]
        stored = [EMPTY] + [EMPTY if state is None else state[1] for state in states]
        for broker in brokers:
            applied = broker.applied[key]
            assert _is_in_order(applied, stored), (applied, stored)
            assert (applied or [EMPTY])[-1] == stored[-1], (applied, stored)
        if stored[-1] == EMPTY:
            assert log.state(key) is None, "an empty fact is deleted in the end"


@given(st.lists(STEP, min_size=20, max_size=120))
def test_what_brokers_apply_is_in_the_stores_order_and_ends_as_the_store(
    steps: list[tuple[str, int, str]],
) -> None:
    asyncio.run(_run(steps))


EARLIER = (
    ("set", 0, "a"),
    ("lag", 1, "a"),
    ("set", 1, "a"),  # decides on that, once it has the answer
    ("clear", 0, "a"),
    ("sweep", 0, "a"),
    ("set", 0, "a"),
    ("burst", 1, "a"),
)


def test_a_deletion_that_does_not_wait_loses_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change was decided on a version that a later fact has, too."""
    sweep = FollowedFacts.sweep

    async def at_once(self: FollowedFacts, may_delete: Callable[[], bool]) -> None:
        self._swept = dict(self._empty)
        await sweep(self, may_delete)

    asyncio.run(_run(EARLIER))
    monkeypatch.setattr(FollowedFacts, "sweep", at_once)
    with pytest.raises(AssertionError, match="decided on b'0'"):
        asyncio.run(_run(EARLIER))


def test_a_fact_that_was_deleted_and_became_empty_again_is_kept_as_long_as_others() -> None:
    """It has the same version as at the last sweep."""
    steps = [
        *[("set", 0, "a"), ("clear", 0, "a"), ("sweep", 0, "a")],
        *[("sweep", 1, "a"), ("sweep", 1, "a"), ("set", 1, "a"), ("clear", 1, "a")],
    ]

    async def scenario() -> None:
        log, tasks = Log(), Tasks()
        brokers = [Broker(log, tasks) for _ in range(2)]
        for broker in brokers:
            await broker.start()
        for step, at, _ in [*steps, ("sweep", 0, "a")]:
            if step == "sweep":
                brokers[at].sweep()
            else:
                brokers[at].change("a", b"x" if step == "set" else EMPTY)
            await _turn()
            await _catch_up(brokers)
        assert log.changes[2] == (PREFIX + "a", None)
        assert log.state(PREFIX + "a") == (1, EMPTY)
        brokers[0].sweep()
        await _turn()
        await _catch_up(brokers)
        assert log.state(PREFIX + "a") is None
        await tasks.close()

    asyncio.run(scenario())
