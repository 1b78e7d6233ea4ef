"""Behaviour of librdkafka itself that the black box tolerates, shown here."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.integration.in_process import TIMEOUT_S, append, hold_answers, move
from tests.kit.cluster import Cluster
from tests.waiting import until

QUIET_S = 30
"""Sixty times what librdkafka waits before it asks once more: only a mended one takes so long."""


@pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="librdkafka 2.16.0 takes up a partition that it has given up: when it no longer does,"
    " `_is_revived` in headrace_verify/checkers/polls.py can go",
)
def test_a_partition_that_was_given_up_while_its_start_was_asked_for_is_fetched_no_more() -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    async def scenario() -> None:
        cluster = Cluster(has_ports=True)
        async with cluster.running(1) as one:
            await one.topics.create("t", 1)
            await move(one, one)
            await append(one, b"v")
            asked, answer = hold_answers(one)
            host, port = one.cluster.kafka_address
            consumer = Consumer({"bootstrap.servers": f"{host}:{port}", "group.id": "g"})
            with contextlib.closing(consumer):
                consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
                async with asyncio.timeout(TIMEOUT_S):
                    await asked.wait()
                await asyncio.to_thread(consumer.unassign)
                answer.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        await until(lambda: one.topics.get("t").partitions[0].traffic.out_bytes)
                assert not await asyncio.to_thread(consumer.assignment)
                fetched_bytes = one.topics.get("t").partitions[0].traffic.out_bytes
            assert not fetched_bytes

    asyncio.run(scenario())
