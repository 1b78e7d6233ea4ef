"""The audit log in a topic: what it says, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.kit.broker import running

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services import audit_lines, audit_topic
from headrace.errors import DiskFull
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from headrace.broker.node import Node


NAME = "audit"
CONFIG = BrokerConfig(audit_topic=NAME)
SESSION = ClientSession("SASL", "10.0.0.1", Principal("mallory"))


async def written(one: Node, count: int) -> list[dict[str, Any]]:
    """The records of the topic, once there are so many."""
    async with asyncio.timeout(10):
        while (topic := one.topics.by_name.get(NAME)) is None:
            await asyncio.sleep(0.01)
        log = topic.require_log(0)
        while log.high_watermark < count:
            await asyncio.sleep(0.01)
    found = []
    at = 0
    while at < log.high_watermark:
        for record in decode_batch(await log.reader.read(at, 1)):
            found.append(json.loads(record.value or b""))
            at = record.offset + 1
    return found


def deny(one: Node, name: str = "secrets") -> None:
    one.audit.denied(SESSION, Operation.READ, ResourceType.TOPIC, name, "Fetch")


async def test_denials_and_changes_are_written_in_their_order():
    async with running(CONFIG) as one:
        deny(one)
        one.audit.changed(SESSION, "DeleteTopics", ["orders"], 0)
        first, second = await written(one, 2)
        assert (first["event"], first["resource"]) == ("denied", "TOPIC:secrets")
        assert first["principal"] == "User:mallory"
        assert (second["event"], second["resources"]) == ("changed", ["orders"])
        assert one.topics.by_name[NAME].fact.partition_count == 1


async def test_lines_wait_while_the_topic_cannot_be_written_and_beyond_a_bound_are_counted(
    monkeypatch,
):
    monkeypatch.setattr(audit_lines, "WAITING_MAX", 5)
    monkeypatch.setattr(audit_topic, "RETRY_S", 0.01)

    async with running(CONFIG) as one:
        sends = one.services.sends
        send = sends.send
        is_full = True

        async def guarded(topic: Any, records: Any) -> Any:
            if is_full:
                return [DiskFull("full")] * len(records)
            return await send(topic, records)

        monkeypatch.setattr(sends, "send", guarded)
        for n in range(8):
            deny(one, f"t{n}")
        await asyncio.sleep(0.2)
        assert one.audit.lines is not None
        assert one.audit.lines.dropped_total == 3
        is_full = False
        assert [line["resource"] for line in await written(one, 5)] == [
            f"TOPIC:t{n}" for n in range(5)
        ]
        deny(one, "later")
        assert (await written(one, 6))[-1]["dropped_before"] == 3


async def test_a_flood_of_denials_is_limited_and_hides_no_change():
    async with running(CONFIG) as one:
        for _ in range(3_000):
            deny(one)
        one.audit.changed(SESSION, "DeleteTopics", ["orders"], 0)
        found = await written(one, audit_topic.BATCH_MAX + 1)  # all, and not the first batch
        assert len(found) < 1_200
        assert found[-1]["event"] == "changed"
