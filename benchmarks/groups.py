"""Consumer groups: how fast many members settle, and how fast a broker has its offsets back.

    python -m benchmarks.groups [members] [offsets]
    python -m benchmarks.groups commits [seconds]

Responsibilities: a broker process as it is shipped on this machine, and members at the level of the
protocol: each with a connection of its own sends ConsumerGroupHeartbeat as often as responses say,
takes and gives up partitions at once, and acknowledges that. They share one process, so their own
work counts as well. All join at once; then one more joins when all has been quiet. For the second
figure offsets are committed by OffsetCommit of 1,000 partitions each, the broker is killed with
kill -9, and the figure is the time from its start until offsets of every coordinator are answered.
`commits` measures 50 groups that commit an offset of one partition each, again and again: groups of
one coordinator partition, and of all 16.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
from tests.integration.broker import Broker
from tests.integration.raw import Raw

from headrace.broker.coordinators.coordinator_shards import hash_key
from headrace.kafka.client.asynchronous import AsyncConnection
from headrace_verify.kafka_wire import decoded_body, encoded_body

HEARTBEAT, FETCH_OFFSETS, COMMIT, CREATE = 68, 9, 8, 19
PARTITIONS_EACH = 2
COMMIT_PARTITIONS = 1_000
COMMIT_GROUPS = 50
COORDINATOR_PARTITIONS = 16
QUIET_S = 8
LOADING = {14, 15, 16}


class Member:
    """One member of the group."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.address = address
        self.topic = topic
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self.given_up = 0
        self.topic_id: Any = None

    def _values(self, *, has_changed: bool) -> dict[str, Any]:
        values: dict[str, Any] = {
            "group_id": "bench",
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topic_partitions": None,
        }
        if self.epoch == 0:
            values |= {
                "rebalance_timeout": 60_000,
                "subscribed_topic_names": (self.topic,),
                "topic_partitions": (),
            }
        elif has_changed:
            owned = {"topic_id": self.topic_id, "partitions": tuple(sorted(self.owned))}
            values["topic_partitions"] = (owned,) if self.owned else ()
        return values

    async def run(self) -> None:
        """Be a member until cancelled."""
        self.member_id = str(uuid.uuid4())
        connection = await AsyncConnection.open(self.address, b"bench")
        has_changed = False
        try:
            while True:
                values = self._values(has_changed=has_changed)
                body, is_flexible = encoded_body(HEARTBEAT, 1, values)
                answer = await connection.ask(HEARTBEAT, 1, body, is_flexible=is_flexible)
                reply = decoded_body(HEARTBEAT, 1, answer)
                assert int(reply.error_code) in LOADING | {0}, reply
                has_changed = False
                if int(reply.error_code):
                    await asyncio.sleep(0.05)
                    continue
                self.epoch = reply.member_epoch
                if reply.assignment is not None:
                    has_changed = self._take(reply.assignment)
                if not has_changed:
                    await asyncio.sleep(reply.heartbeat_interval.total_seconds())
        finally:
            connection.close()

    def _take(self, assignment: Any) -> bool:
        given: frozenset[int] = frozenset()
        for topic in assignment.topic_partitions:
            self.topic_id, given = topic.topic_id, frozenset(topic.partitions)
        before, self.owned = self.owned, given
        self.given_up += len(before - given)
        return before != given


def is_settled(members: list[Member], partitions: int) -> bool:
    owned = [number for member in members for number in member.owned]
    return (
        len(owned) == len(set(owned)) == partitions
        and len({member.epoch for member in members}) == 1
        and max(len(m.owned) for m in members) - min(len(m.owned) for m in members) <= 1
    )


async def gather(address: tuple[str, int], topic: str, count: int) -> tuple[float, float, int]:
    """Seconds until all have settled, until one more has, and what the others gave up for it."""
    partitions = count * PARTITIONS_EACH
    members = [Member(address, topic) for _ in range(count)]
    tasks = [asyncio.create_task(member.run()) for member in members]

    async def settled() -> float:
        began = time.perf_counter()
        while not is_settled(members, partitions):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)
        return time.perf_counter() - began

    first = await settled()
    await asyncio.sleep(QUIET_S)
    before = sum(member.given_up for member in members)
    members.append(Member(address, topic))
    tasks.append(asyncio.create_task(members[-1].run()))
    second = await settled()
    moved = sum(member.given_up for member in members) - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return first, second, moved


def create(raw: Raw, topic: str, partitions: int) -> Any:
    made = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
    return raw.call(CREATE, 7, topics=[made], timeout=60_000).topics[0].topic_id


def commit(raw: Raw, topic: str, offsets: int) -> list[str]:
    """Commit offsets in as many groups as it takes; their names."""
    groups = [f"group-{number}" for number in range(offsets // COMMIT_PARTITIONS)]
    parts = tuple(
        {
            "partition_index": number,
            "committed_offset": 0,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        for number in range(COMMIT_PARTITIONS)
    )
    for group in groups:
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": parts}],
        }
        while any(int(p.error_code) for p in raw.call(COMMIT, 8, **values).topics[0].partitions):
            time.sleep(0.05)
    return groups


def restart(folder: Path, offsets: int) -> tuple[float, float, float]:
    """Seconds until the first offsets are answered after a start, until all are; CPU seconds."""
    broker = Broker(folder).start()
    try:
        with Raw(broker.address) as raw:
            create(raw, "wide", COMMIT_PARTITIONS)
            groups = commit(raw, "wide", offsets)
        broker.kill()
        began = time.perf_counter()
        broker.start()
        first = 0.0
        with Raw(broker.address) as raw:
            named = [{"name": "wide", "partition_indexes": (0, COMMIT_PARTITIONS - 1)}]
            for group in groups:
                asked = [{"group_id": group, "member_epoch": -1, "topics": named}]
                while True:
                    found = raw.call(FETCH_OFFSETS, 8, groups=asked).groups[0]
                    if not int(found.error_code):
                        break
                    time.sleep(0.01)
                committed = [part.committed_offset for part in found.topics[0].partitions]
                assert committed == [0, 0], committed
                first = first or time.perf_counter() - began
        cpu = psutil.Process(broker.process.pid).cpu_times()
        return first, time.perf_counter() - began, cpu.user + cpu.system
    finally:
        broker.stop()


async def commit_again(address: tuple[str, int], group: str, until_s: float) -> int:
    """Commits of one consumer, the next one when the last is acknowledged: how many."""
    part = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": (part,)}],
    }
    request, is_flexible = encoded_body(COMMIT, 8, values)
    connection = await AsyncConnection.open(address, b"bench")
    count, good = 0, b""
    while time.perf_counter() < until_s:
        reply = await connection.ask(COMMIT, 8, request, is_flexible=is_flexible)
        if reply != good:
            error = int(decoded_body(COMMIT, 8, reply).topics[0].partitions[0].error_code)
            assert error in LOADING | {0}, error
            if error:
                await asyncio.sleep(0.05)
                continue
            good = reply
        count += 1
    connection.close()
    return count


def commit_groups(*, share_partition: bool) -> list[str]:
    """Groups that are spread over all partitions of the coordinators, or all in the first."""
    names = (f"group-{number}" for number in itertools.count())
    if share_partition:
        names = (name for name in names if hash_key(name, COORDINATOR_PARTITIONS) == 0)
    return list(itertools.islice(names, COMMIT_GROUPS))


async def commit_all(address: tuple[str, int], names: list[str], seconds: float) -> int:
    until_s = time.perf_counter() + seconds
    return sum(await asyncio.gather(*[commit_again(address, name, until_s) for name in names]))


def print_commits(folder: Path, seconds: float, *, share_partition: bool) -> None:
    """The figures of consumers that commit."""
    names = commit_groups(share_partition=share_partition)
    broker = Broker(folder).start()
    try:
        with Raw(broker.address) as raw:
            create(raw, "t", 1)
        asyncio.run(commit_all(broker.address, names, 1))
        process = psutil.Process(broker.process.pid)
        before = process.cpu_times()
        count = asyncio.run(commit_all(broker.address, names, seconds))
        after = process.cpu_times()
        cpu = after.user + after.system - before.user - before.system
    finally:
        broker.stop()
    where = "in one coordinator partition" if share_partition else "over all of them"
    print(
        f"{COMMIT_GROUPS} groups {where}: {count / seconds:,.0f} commits/s,"
        f" {cpu / count * 1e6:.0f} us of broker CPU each"
    )


def print_members(folder: Path, count: int) -> None:
    """The figures of members that join."""
    broker = Broker(folder).start()
    try:
        with Raw(broker.address) as raw:
            create(raw, "t", count * PARTITIONS_EACH)
        cpu = psutil.Process(broker.process.pid).cpu_times()
        before = cpu.user + cpu.system
        first, second, moved = asyncio.run(gather(broker.address, "t", count))
        cpu = psutil.Process(broker.process.pid).cpu_times()
    finally:
        broker.stop()
    print(f"{count} members join at once: settled after {first:.2f} s")
    print(f"one more joins: settled after {second:.2f} s, {moved} partitions moved")
    print(f"broker CPU for all of it: {cpu.user + cpu.system - before:.2f} s")


def main(members: int, offsets: int) -> None:
    """Print one line for each figure; no members: the second alone."""
    with tempfile.TemporaryDirectory() as name:
        if members:
            print_members(Path(name) / "members", members)
        first, every, cpu = restart(Path(name) / "offsets", offsets)
        print(
            f"{offsets:,} offsets after kill -9: first {first:.2f} s, all {every:.2f} s,"
            f" {cpu:.2f} s of CPU"
        )
        print(f"load {os.getloadavg()[0]:.1f}")


def commits(seconds: float) -> None:
    """Print one line for groups of one coordinator partition, and one for groups of all."""
    with tempfile.TemporaryDirectory() as name:
        for share_partition in (True, False):
            folder = Path(name) / str(share_partition)
            print_commits(folder, seconds, share_partition=share_partition)
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__" and sys.argv[1:2] == ["commits"]:
    commits(float(sys.argv[2]) if len(sys.argv) > 2 else 10)
elif __name__ == "__main__":
    main(*[int(word) for word in [*sys.argv[1:], *("100", "1000000")[len(sys.argv) - 1 :]]])
