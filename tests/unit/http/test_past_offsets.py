"""The offsets of groups at an earlier time, read from the log of a real broker's coordinator."""

from __future__ import annotations

from tests.unit.http.http_rig import Web, on_the_web

from headrace.broker.services import past_group_offsets
from headrace.coordination.groups.commands import (
    NO_GENERATION,
    CommitCommand,
    DeleteOffsetsCommand,
    OffsetToCommit,
    TransactionalCommitCommand,
)
from headrace.coordination.kit.machine import EndsTransaction
from headrace.records.identifiers import OFFSETS_TOPIC

MINUTE_MS = 60_000
PATH = "/v1/topics/orders/past-offsets"


class Past:
    """Commits of groups in the topic `orders`, a minute apart."""

    def __init__(self, web: Web) -> None:
        self.web, self.node = web, web.node

    async def begin(self) -> None:
        for name in ("orders", "other"):
            await self.web.ask("POST", "/v1/topics", {"name": name, "partitions": 2})
        await self.node.services.groups.ensure_offsets_topic()

    def now(self) -> int:
        """A time after all that was done; what is done next is done later."""
        self.web.rig.clock.ahead_ms += MINUTE_MS
        found = self.node.clock.now_ms()
        self.web.rig.clock.ahead_ms += MINUTE_MS
        return found

    async def commit(self, group: str, *offsets: int, topic: str = "orders") -> int:
        wanted = [OffsetToCommit(topic, number, one) for number, one in enumerate(offsets)]
        command = CommitCommand(group, NO_GENERATION, "", None, wanted)
        reply = await self.node.services.groups.commit(command)
        assert [one.error for one in reply.results] == [None] * len(offsets)
        return self.now()

    async def submit(self, group: str, command) -> int:
        reply = await self.node.groups.shards.submit(group, command)
        assert getattr(reply, "error", None) is None, reply
        assert all(one.error is None for one in getattr(reply, "results", [])), reply
        return self.now()

    async def pending(self, group: str, producer: int, offset: int) -> int:
        wanted = [OffsetToCommit("orders", 0, offset)]
        number = self.node.groups.partition_for(group)
        held = self.node.services.topics.get(OFFSETS_TOPIC).require_log(number)
        held.begin_verification(producer)
        return await self.submit(
            group, TransactionalCommitCommand(group, producer, 0, -1, "", None, wanted)
        )

    async def ended(self, group: str, producer: int, *, is_commit: bool) -> int:
        marker = EndsTransaction(producer, 0, 0, is_commit, 1)
        number = self.node.groups.partition_for(group)
        assert await self.node.groups.write_marker(number, marker) is None
        return self.now()

    async def snapshot(self, group: str) -> int:
        """As the shard of the group writes it once its log is long."""
        shard = self.node.groups.shards.shard(self.node.groups.partition_for(group))
        assert shard.machine is not None
        await shard.snapshots._write(shard.machine, 0, 0)
        return self.now()

    async def at(self, at_ms: int, query: str = "") -> dict[str, list]:
        status, answer = await self.web.ask("GET", f"{PATH}?at_ms={at_ms}{query}")
        assert status == 200, answer
        assert answer["topic"] == "orders"
        return {
            one["group"]: [
                row["offset"] if row["state"] == "committed" else row["state"]
                for row in one["offsets"]
            ]
            for one in answer["groups"]
        }


def of_past(test):
    async def scenario(web: Web) -> None:
        past = Past(web)
        await past.begin()
        await test(past)

    scenario.__name__ = test.__name__
    return on_the_web(scenario)


@of_past
async def test_each_group_has_the_offset_that_it_had_committed_then(past):
    before = past.now()
    first = await past.commit("billing", 3, 4)
    await past.commit("billing", 70, topic="other")
    second = await past.commit("shipping", 1)
    third = await past.commit("billing", 9)
    assert await past.at(before) == {"billing": ["none", "none"], "shipping": ["none"]}
    assert await past.at(first) == {"billing": [3, 4], "shipping": ["none"]}
    assert await past.at(second) == {"billing": [3, 4], "shipping": [1]}
    assert await past.at(third) == {"billing": [9, 4], "shipping": [1]}
    assert await past.at(second, "&group=billing") == {"billing": [3, 4]}
    assert await past.at(second, "&group=unknown") == {}


@of_past
async def test_a_deleted_offset_is_none_from_then_on(past):
    first = await past.commit("billing", 3)
    delete = DeleteOffsetsCommand("billing", [("orders", 0)])
    deleted = await past.submit("billing", delete)
    assert await past.at(first) == {"billing": [3]}
    assert await past.at(deleted) == {"billing": ["none"]}


@of_past
async def test_commits_of_a_transaction_count_from_its_end_on_and_those_of_an_aborted_one_never(
    past,
):
    first = await past.commit("billing", 3)
    pending = await past.pending("billing", 7, 5)
    committed = await past.ended("billing", 7, is_commit=True)
    await past.pending("billing", 7, 8)
    aborted = await past.ended("billing", 7, is_commit=False)
    for at_ms, offset in ((first, 3), (pending, 3), (committed, 5), (aborted, 5)):
        assert await past.at(at_ms) == {"billing": [offset]}


@of_past
async def test_what_a_snapshot_has_replaced_is_unknown_and_what_it_repeats_is_exact(past):
    first = await past.commit("billing", 3)
    still = await past.commit("shipping", 1)
    second = await past.commit("billing", 5)
    past.web.rig.clock.ahead_ms += 30 * MINUTE_MS
    later = past.now()
    for group in ("billing", "shipping"):
        await past.snapshot(group)
    third = await past.commit("billing", 9)
    assert await past.at(first) == {"billing": ["trimmed"], "shipping": ["trimmed"]}
    assert (await past.at(still))["shipping"] == ["in_transaction"]
    assert (await past.at(second))["billing"] == ["in_transaction"]
    assert await past.at(later) == {"billing": [5], "shipping": [1]}
    assert await past.at(third) == {"billing": [9], "shipping": [1]}


@of_past
async def test_offsets_of_an_earlier_topic_of_the_same_name_are_none(past):
    first = await past.commit("billing", 3)
    await past.web.ask("DELETE", "/v1/topics/orders")
    await past.web.ask("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    await past.commit("billing", 1)
    assert await past.at(first) == {"billing": ["none"]}


def test_a_log_that_is_too_long_is_said_to_be(monkeypatch):
    monkeypatch.setattr(past_group_offsets, "READ_BYTES", 1)
    monkeypatch.setattr(past_group_offsets, "BYTES_MAX", 1)

    @of_past
    async def check(past):
        before = past.now()
        await past.commit("billing", 3)
        last = await past.commit("billing", 5)
        assert await past.at(before) == {"billing": ["none"]}
        assert await past.at(last) == {"billing": ["too_large"]}

    check()


@of_past
async def test_without_a_time_it_is_now(past):
    await past.commit("billing", 3)
    status, answer = await past.web.ask("GET", PATH)
    assert status == 200
    assert answer["at_ms"] <= past.node.clock.now_ms()
    assert answer["groups"][0]["offsets"][0]["offset"] == 3
