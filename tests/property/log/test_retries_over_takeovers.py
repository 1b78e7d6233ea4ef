"""Idempotent producers over doubt, rolls, takeovers and hand-overs: stored once, and in order.

The log runs over ledgers that several brokers share. A producer has one batch under way, sends it
again until it has an answer, sends acknowledged ones again now and then, and at times the next one
before the one that failed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.log_rig import NOW_MS, LogHarness, rig, settle

from headrace.errors import HeadraceError, NotOwner, StorageUnavailable
from headrace.log.log_config import LogConfig
from headrace.log.producer_encoding import DUPLICATES_KEPT
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, encode_batch

PRODUCERS = (7, 8)
TRIES = 40
STEPS = ("append", "append", "lost", "stored", "ahead", "again", "roll", "note", "take", "hand")


class Player:
    """Two producers, and the present owner of the partition."""

    def __init__(self, owner: LogHarness) -> None:
        self.owner = owner
        self.epoch = 0
        self.next = dict.fromkeys(PRODUCERS, 0)
        """What each sends next, or sends again if its answer was lost."""
        self.offsets: dict[tuple[int, int], int] = {}
        """(producer, sequence) -> where it lies, of what was acknowledged."""

    async def send(self, producer: int, sequence: int) -> int:
        """Its offset. Raises what the log says."""
        batch = encode_batch(
            [Record(0, NOW_MS, None, b"x" * 100, [])],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )
        for _ in range(TRIES):
            appended = self.owner.log.append(batch, check_batch(batch))
            if appended is not None:
                await appended.completion.wait()
                return appended.base_offset
            await settle()
        raise AssertionError("the log never became ready")

    async def append(self, producer: int) -> None:
        """The next one, until it is acknowledged."""
        sequence = self.next[producer]
        self.offsets[producer, sequence] = await self.send(producer, sequence)
        self.next[producer] += 1

    async def in_doubt(self, producer: int, *, is_stored: bool) -> None:
        """The next one, of which the answer never comes."""
        with self.owner.store.in_doubt(is_stored=is_stored), suppress(HeadraceError):
            await self.send(producer, self.next[producer])
        await settle()

    async def ahead(self, producer: int) -> None:
        """One that comes before the one whose answer is lost."""
        sequence = self.next[producer]
        try:
            offset = await self.send(producer, sequence + 1)
        except StorageUnavailable:
            return
        self.offsets[producer, sequence + 1] = offset
        # Accepted, so the one before must be there already.
        self.offsets[producer, sequence] = await self.send(producer, sequence)
        assert self.offsets[producer, sequence] < offset
        self.next[producer] += 2

    async def again(self, producer: int, back: int) -> None:
        """One that was acknowledged: it is known."""
        sequence = self.next[producer] - 1 - back
        if sequence >= 0:
            assert await self.send(producer, sequence) == self.offsets[producer, sequence]

    async def change_hands(self, *, in_peace: bool) -> None:
        """Another broker owns it from now on."""
        self.epoch += 1
        tenure = self.owner.log.tenure
        if in_peace:
            await tenure.settle_and_seal()
            tenure.abandon(NotOwner("gone"))
        rival = self.owner.rival(self.epoch)
        await rival.ready()
        self.owner = rival

    async def stored(self) -> list[tuple[int, int]]:
        """(producer, sequence) of all batches, as a reader finds them."""
        found: list[tuple[int, int]] = []
        offset, log = 0, self.owner.log
        while offset < log.high_watermark:
            for _, header in iterate_headers(await log.reader.read(offset, 1)):
                found.append((header.producer_id, header.base_sequence))
                offset = header.last_offset + 1
        return found


async def play(steps: list[tuple[str, int, int]]) -> None:
    failed = dict.fromkeys(PRODUCERS, False)
    async with rig(LogConfig(segment_bytes=1_000), leader_epoch=0) as first:
        player = Player(first)
        for step, producer, number in steps:
            if step == "append":
                await player.append(producer)
                failed[producer] = False
            elif step in {"lost", "stored"}:
                await player.in_doubt(producer, is_stored=step == "stored")
                failed[producer] = True
            elif step == "ahead" and failed[producer]:
                before = player.next[producer]
                await player.ahead(producer)
                failed[producer] = player.next[producer] == before
            elif step == "again" and not failed[producer]:
                await player.again(producer, number)
            elif step == "roll":
                await player.owner.log.lifecycle_host.roll_now()
            elif step == "note":
                player.owner.log.lifecycle_host.note()
            elif step in {"take", "hand"}:
                await player.change_hands(in_peace=step == "hand")
        for producer in PRODUCERS:
            await player.append(producer)
        found = await player.stored()
        for producer in PRODUCERS:
            sequences = [sequence for one, sequence in found if one == producer]
            assert sequences == list(range(player.next[producer])), "once, and in order"
        await player.owner.tasks.close()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.sampled_from(PRODUCERS),
            st.integers(0, DUPLICATES_KEPT - 1),
        ),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=150)
def test_every_batch_is_stored_once_and_in_order(steps) -> None:
    asyncio.run(play(steps))


@pytest.mark.parametrize("how", ["take", "hand"])
def test_a_second_batch_is_never_stored_before_the_first_that_was_lost(how) -> None:
    asyncio.run(play([("lost", 7, 0), ("ahead", 7, 0), (how, 7, 0), ("ahead", 7, 0)]))
