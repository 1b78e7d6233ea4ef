"""Members of share groups whose sessions end: what they held is released, whatever fails."""

from __future__ import annotations

import asyncio

import pytest
from tests.clocks import HandClock
from tests.kit.broker import broker
from tests.unit.broker.test_share_partitions import make_topic
from tests.waiting import until

from headrace.broker.shares import share_groups
from headrace.broker.shares.share_groups import ShareGroups
from headrace.coordination.shares.membership import ShareHeartbeat, ShareMembership
from headrace.errors import GroupIdInvalid

INTERVAL_MS = 45_000


class Releases:
    """Partitions on which the release of `stuck` never ends, and that of `broken` fails."""

    def __init__(self):
        self.released = []

    async def release(self, _topic, _number, _group_id, member_id):
        if member_id == "stuck":
            await asyncio.Event().wait()
        if member_id == "broken":
            raise RuntimeError("a fault of the program")
        self.released.append(member_id)


async def join(groups, topic, member_id):
    await groups.heartbeat(ShareHeartbeat("workers", member_id, 0, ["jobs"], None, "c", "h"))
    session, _ = groups.sessions.open("workers", member_id, object())
    groups.sessions.update(session, [(topic.id, 0)], [])


async def test_a_release_that_hangs_or_fails_does_not_keep_those_of_other_members(monkeypatch):
    monkeypatch.setattr(share_groups, "EXPIRY_INTERVAL_S", 0.001)

    async with broker() as rig:
        topic = await make_topic(rig, "jobs")
        clock, releases = HandClock(), Releases()
        node = rig.node
        groups = ShareGroups(
            node.topics, releases, node.group_configs, lambda _: None, clock, node.tasks
        )
        for member_id in ("stuck", "broken", "good"):
            await join(groups, topic, member_id)
        clock.ns += 2 * INTERVAL_MS * 1_000_000
        await until(lambda: releases.released == ["good"])
        await join(groups, topic, "later")
        clock.ns += 2 * INTERVAL_MS * 1_000_000
        await until(lambda: releases.released == ["good", "later"])


async def test_a_member_of_a_group_with_a_long_name_is_refused():
    async with broker() as rig:
        beat = ShareHeartbeat("g" * 256, "m", 0, ["jobs"], None, "c", "h")
        with pytest.raises(GroupIdInvalid, match="255"):
            await rig.node.services.share_members.heartbeat(beat)


def test_an_unexpected_error_does_not_end_the_expiry_of_sessions(monkeypatch, caplog):
    monkeypatch.setattr(share_groups, "EXPIRY_INTERVAL_S", 0.001)
    expire = ShareMembership.expire
    failures = [RuntimeError("a fault of the program")]

    def fails_once(*args):
        if failures:
            raise failures.pop()
        return expire(*args)

    monkeypatch.setattr(ShareMembership, "expire", fails_once)

    async def scenario():
        async with broker() as rig:
            topic = await make_topic(rig, "jobs")
            clock, releases = HandClock(), Releases()
            node = rig.node
            groups = ShareGroups(
                node.topics, releases, node.group_configs, lambda _: None, clock, node.tasks
            )
            await join(groups, topic, "good")
            clock.ns += 2 * INTERVAL_MS * 1_000_000
            await until(lambda: releases.released == ["good"])

    asyncio.run(scenario())
    assert "a fault of the program" in caplog.text
