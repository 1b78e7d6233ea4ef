"""What is encoded of a partition's producers in slices is what there was when it began.

Meanwhile batches and markers are appended and undone, producers get new epochs, expire and are
dropped, and further snapshots are taken. The expected bytes are those that are encoded at once, and
a twin of which no snapshot is taken goes through the same.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.records import batch

from headrace.errors import HeadraceError
from headrace.log import producer_encoding
from headrace.log.footer import Footer, encode_footer, encode_in_steps
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.records.attributes import NamedSequence
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PRODUCERS = 7
LIMITS = 2**63, 400, 150
"""Of bytes: in some of these the longest idle producers are dropped."""
OPERATIONS = (
    *("batch",) * 8,
    *("marker",) * 3,
    *("step",) * 8,
    *("snapshot", "epoch", "undo", "settle", "expire", "drop", "name"),
)


class World:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.states = [ProducerState(), ProducerState()]
        """The second one is never taken a snapshot of."""
        self.now_ms, self.end, self.safe = 1_000, 0, 0
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.encoding: list[tuple[Generator[None, None, bytes], bytes]] = []

    def both(self, change: Callable[[ProducerState], Any]) -> None:
        """The same for the twins."""
        outcomes = []
        for state in self.states:
            try:
                outcomes.append(repr(change(state)))
            except HeadraceError as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1]

    def do(self, operation: str) -> None:
        self.now_ms += self.rng.randrange(10_000)
        getattr(self, f"_{operation}")(self.rng.randrange(PRODUCERS))

    def _batch(self, producer_id: int) -> None:
        last = self.states[0].last_sequence(producer_id)
        is_transactional = self.rng.random() < 0.5
        header = self._header(producer_id, 0 if last is None else last + 1, is_transactional)

        def append(state: ProducerState) -> None:
            if state.check(header) is None:
                state.apply(header, self.end, self.now_ms, self.safe)

        self.both(append)
        self.end += 1

    def _header(self, producer_id: int, sequence: int, is_transactional: bool = False) -> Any:
        of = {"producer_id": producer_id, "producer_epoch": self.epochs[producer_id]}
        of |= {"base_sequence": sequence, "is_transactional": is_transactional}
        return read_header(batch(b"x", **of))

    def _marker(self, producer_id: int) -> None:
        header = self._header(producer_id, -1)
        epoch = self.rng.randrange(3)
        self.both(lambda of: of.apply_marker(header, epoch, self.end, self.now_ms, self.safe))
        self.end += 1

    def _epoch(self, producer_id: int) -> None:
        self.epochs[producer_id] += 1

    def _undo(self, _: int) -> None:
        self.end = self.rng.randint(self.safe, self.end)
        self.both(lambda of: of.truncate(self.end))

    def _settle(self, _: int) -> None:
        self.safe = self.end

    def _expire(self, _: int) -> None:
        before_ms = self.now_ms - self.rng.randrange(100_000)
        self.both(lambda of: list(of.expire(before_ms, self.now_ms, 0)))

    def _drop(self, count: int) -> None:
        self.both(lambda of: sum(of.drop_idle(count, self.safe, self.now_ms)))

    def _name(self, number: int) -> None:
        named = [NamedSequence(f"name-{number}", self.end)]
        self.both(lambda of: of.named.apply(named, self.end, self.safe))
        self.end += 1

    def _snapshot(self, _: int) -> None:
        """No append is pending then, as when a ledger is rolled."""
        self.safe = self.end
        limit = self.rng.choice(LIMITS)
        expected, taken = (
            Footer(self.end, 1, OffsetIndex(), state)
            for state in (self.states[0], self.states[0].snapshot())
        )
        self.encoding.append((encode_in_steps(taken, limit), encode_footer(expected, limit)))

    def _step(self, number: int) -> None:
        if self.encoding:
            at = number % len(self.encoding)
            if (found := step(self.encoding[at][0])) is not None:
                assert found == self.encoding.pop(at)[1]

    def finish(self) -> None:
        while self.encoding:
            self._step(0)
        first, second = (encode_footer(Footer(0, 1, OffsetIndex(), one)) for one in self.states)
        assert first == second


def step(encoding: Generator[None, None, bytes]) -> bytes | None:
    """The bytes, after the last step."""
    try:
        next(encoding)
    except StopIteration as done:
        found: bytes = done.value
        return found
    return None


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), slice_size=st.sampled_from([1, 2, 3]))
def test_a_snapshot_is_encoded_as_it_was_whatever_happens_meanwhile(seed: int, slice_size: int):
    rng = Random(seed)
    world = World(rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_encoding, "SLICE", slice_size)
        for _ in range(120):
            world.do(rng.choice(OPERATIONS))
        world.finish()
