"""DescribeLogDirs: the disk and the partitions on it."""

from __future__ import annotations

import asyncio
from io import BytesIO

from kio.index import load_response_schema
from kio.serial import entity_writer
from tests.kit.broker import broker

from headrace.cli.disk_space import LogDir, read_log_dirs
from headrace.kafka import apis
from headrace.storage.ledger import DiskSpace


class _Disk:
    def __init__(self, *, is_full: bool) -> None:
        self._is_full = is_full

    def space(self) -> DiskSpace:
        return DiskSpace(1_000, 10_000, 400, self._is_full)


async def test_usable_is_what_records_may_take() -> None:
    async with broker() as rig:
        client = rig.client()
        answer = await client.ask(apis.DESCRIBE_LOG_DIRS, 4, {"topics": ()})
        assert answer.results[0].usable_bytes == -1, "ledgers that are not on this machine"
        for is_full, usable in ((False, 600), (True, 0)):
            rig.node.services.topics.disk = _Disk(is_full=is_full)
            answer = await client.ask(apis.DESCRIBE_LOG_DIRS, 4, {"topics": ()})
            (found,) = answer.results
            assert (found.error_code, found.total_bytes, found.usable_bytes) == (
                0,
                10_000,
                usable,
            )


async def test_partitions_are_named_once_with_their_sizes() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 2)
        await rig.node.topics.create("u", 1)
        asked = [{"topic": "t", "partitions": (1, 7)}] * 500 + [{"topic": "no"}]
        answer = await rig.client().ask(apis.DESCRIBE_LOG_DIRS, 1, {"topics": asked})
        (topic,) = answer.results[0].topics
        assert [part.partition_index for part in topic.partitions] == [1]
        answer = await rig.client().ask(apis.DESCRIBE_LOG_DIRS, 2, {"topics": None})
        assert {t.name: len(t.partitions) for t in answer.results[0].topics} == {"t": 2, "u": 1}


def test_the_command_line_reads_an_answer_of_the_protocol() -> None:
    cls = load_response_schema(apis.DESCRIBE_LOG_DIRS, 4)

    async def scenario() -> bytes:
        async with broker() as rig:
            rig.node.services.topics.disk = _Disk(is_full=True)
            entity = await rig.client().ask(apis.DESCRIBE_LOG_DIRS, 4, {"topics": ()})
            body = BytesIO()
            entity_writer(cls)(body, entity)
            return body.getvalue()

    assert read_log_dirs(asyncio.run(scenario())) == [LogDir(10_000, 0)]
