"""Administration over the wire where something else is going wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker, metrics_of
from tests.kit.records import batch

from headrace.broker.broker_config import BrokerConfig
from headrace.errors import CoordinatorLoading, DataCorrupt
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, UNSUPPORTED_VERSION
from headrace.records.codec import Record, encode_batch

if TYPE_CHECKING:
    from uuid import UUID


async def test_a_deleted_topic_is_said_to_be_deleted_though_its_offsets_cannot_be_dropped_now():
    async with broker() as rig:
        await rig.node.topics.create("t")

        async def refuse(_name: str, _id: UUID) -> None:
            raise CoordinatorLoading("reading the log")

        rig.node.groups.topic_deleted = refuse  # type: ignore[method-assign]
        answer = await rig.client().ask(apis.DELETE_TOPICS, 5, {"topic_names": ["t"]})
        assert [int(result.error_code) for result in answer.responses] == [0]


async def test_the_pages_of_topics_continue_after_a_deleted_topic() -> None:
    async with broker() as rig:
        await rig.node.topics.create("b", 3)
        answer = await rig.client().ask(
            apis.DESCRIBE_TOPIC_PARTITIONS,
            0,
            {
                "topics": [{"name": "a"}, {"name": "b"}],
                "response_partition_limit": 10,
                "cursor": {"topic_name": "a", "partition_index": 2},
            },
        )
        counts = {topic.name: len(topic.partitions) for topic in answer.topics}
        assert counts == {"a": 0, "b": 3}


async def test_metrics_leave_out_what_is_damaged_or_not_loaded_and_load_nothing() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 2)
        client = rig.client()
        for partition in range(2):
            await client.ask(
                apis.OFFSET_COMMIT,
                7,
                {
                    "group_id": "g",
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                    "topics": [
                        {
                            "name": "t",
                            "partitions": [{"partition_index": partition, "committed_offset": 0}],
                        }
                    ],
                },
            )
        metrics, logs = metrics_of(rig), rig.node.topics.get("t").logs
        text, _type = metrics.render()
        assert b"headrace_group_lag_records{" not in text
        assert not any(log.is_loaded for _number, log in logs)
        await rig.node.services.topics.log("t", 1)
        rig.node.topics.get("t").partitions[0].tenure.abandon(DataCorrupt("damaged"))
        text, _type = metrics.render()
        assert b'headrace_group_lag_records{group="g",partition="1",topic="t"}' in text
        assert b'headrace_group_lag_records{group="g",partition="0",topic="t"}' not in text


async def test_a_client_that_connects_during_start_gets_the_true_address() -> None:
    async with broker(BrokerConfig(offsets_partition_count=2)) as rig:
        rig.node.cluster.kafka_address = ("", 0)
        address = await rig.face.listen("127.0.0.1", 0)
        answer = await rig.client().ask(apis.METADATA, 1, {"topics": None})
        assert [(b.host, b.port) for b in answer.brokers] == [address]


async def test_a_topic_that_is_asked_for_a_thousand_times_is_described_once() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        topic_id = rig.node.topics.get("t").id
        topics = [{"name": "t"}] * 1_000 + [{"name": None, "topic_id": topic_id}] * 1_000
        answer = await rig.client().ask(apis.METADATA, 12, {"topics": topics})
        assert [topic.name for topic in answer.topics] == ["t", "t"]


async def test_only_records_may_fill_a_request_of_a_hundred_megabytes() -> None:
    async with broker() as rig:
        client = rig.client()
        client.send(apis.METADATA, 1, {"topics": [{"name": "n" * 30_000}] * 300})
        await asyncio.sleep(0)
        assert client.transport.is_over


@pytest.mark.parametrize(
    ("timestamp_ms", "first_version"),
    [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12)],
)
async def test_a_place_in_the_log_is_known_from_the_version_on_that_brought_it(
    timestamp_ms: int, first_version: int
) -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        for version in range(1, 12):
            partition = {"partition_index": 0, "timestamp": timestamp_ms}
            if version >= 4:
                partition["current_leader_epoch"] = -1
            request: dict[str, Any] = {
                "replica_id": -1,
                "topics": [{"name": "t", "partitions": [partition]}],
            }
            answer = await rig.client().ask(apis.LIST_OFFSETS, version, request)
            found = answer.topics[0].partitions[0]
            is_known = version >= first_version
            assert found.error_code == (0 if is_known else UNSUPPORTED_VERSION)
            assert is_known or found.offset == -1


BROKER_RESOURCE = 4


def _broker_change(
    name: str, value: str, broker: str = "", *, only: bool = False
) -> dict[str, Any]:
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": BROKER_RESOURCE, "resource_name": broker, "configs": [change]}
    return {"resources": [resource], "validate_only": only}


async def test_settings_of_brokers_are_described_with_their_sources_and_changed() -> None:
    async with broker(BrokerConfig(offsets_partition_count=2)) as rig:
        client = rig.client()

        async def described(broker_id: str) -> dict[str, Any]:
            resource = {
                "resource_type": BROKER_RESOURCE,
                "resource_name": broker_id,
                "configuration_keys": None,
            }
            request = {
                "resources": [resource],
                "include_synonyms": True,
                "include_documentation": True,
            }
            answer = await client.ask(apis.DESCRIBE_CONFIGS, 4, request)
            return {config.name: config for config in answer.results[0].configs}

        shown = await described("0")
        assert (shown["transaction.max.timeout.ms"].value) == "900000"
        assert shown["transaction.max.timeout.ms"].config_source == 5
        assert shown["transaction.max.timeout.ms"].read_only
        assert shown["offsets.topic.num.partitions"].config_source == 4
        assert shown["log.dirs"].is_sensitive
        assert shown["log.dirs"].value is None
        assert not shown["num.partitions"].read_only
        assert shown["num.partitions"].config_type == 3
        assert shown["num.partitions"].documentation
        for name, value, code in (
            ("num.partitions", "3", 0),
            ("num.partitions", "many", 40),
            ("node.id", "3", 40),
            ("no.such", "3", 40),
        ):
            for only in (True, False):
                request = _broker_change(name, value, only=only)
                answer = await client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
                assert int(answer.responses[0].error_code) == code
        changed = (await described("0"))["num.partitions"]
        assert (changed.value, changed.config_source) == ("3", 3)
        assert [(s.value, s.source) for s in changed.synonyms] == [("3", 3), ("1", 5)]
        assert list(await described("")) == ["num.partitions"]
        created = await client.ask(apis.CREATE_TOPICS, 5, _new_topic())
        assert created.topics[0].num_partitions == 3


def _new_topic() -> dict[str, Any]:
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1}
    return {"topics": [topic], "timeout_ms": 1_000}


async def test_the_older_request_replaces_all_changes_of_a_broker() -> None:
    async with broker() as rig:
        client = rig.client()
        for name in ("num.partitions", "log.cleaner.backoff.ms"):
            request = _broker_change(name, "500", "0")
            await client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 0, request)
        assert len(rig.node.settings.overrides("0")) == 2
        resource = {
            "resource_type": BROKER_RESOURCE,
            "resource_name": "0",
            "configs": [{"name": "num.partitions", "value": "4"}],
        }
        request = {"resources": [resource], "validate_only": False}
        await client.ask(apis.ALTER_CONFIGS, 1, request)
        assert rig.node.settings.overrides("0") == {"num.partitions": "4"}
        assert rig.node.config.compaction_interval_ms == 15_000


async def test_metrics_show_how_many_records_a_share_group_has_not_finished() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t", 1)
        topic = rig.node.topics.get("t")
        await rig.node.shares.begin(topic, 0, "workers")
        for value in (b"a", b"b", b"c"):
            await rig.node.appends.append_own(topic.partitions[0], batch(value))
        await rig.node.shares.move_start(topic, 0, "workers", 1)
        text, _type = metrics_of(rig).render()
        sample = 'headrace_share_group_lag_records{group="workers",partition="0",topic="t"}'
        assert f"{sample} 2.0\n" in text.decode()


async def test_metrics_show_the_age_of_the_first_unfinished_record_of_a_queue() -> None:
    async with broker() as rig:
        metrics = metrics_of(rig)
        sample = 'headrace_queue_oldest_seconds{group="workers",topic="t"} '

        async def age_s() -> float | None:
            text, _type = metrics.render()
            lines = text.decode().splitlines()
            found = [line.removeprefix(sample) for line in lines if line.startswith(sample)]
            return float(found[0]) if found else None

        await rig.node.topics.create("t", 2)
        topic = rig.node.topics.get("t")
        for number in (0, 1):
            await rig.node.shares.begin(topic, number, "workers")
        assert await age_s() is None, "nothing waits"
        now_ms = rig.node.clock.now_ms()
        for number, old_ms in ((0, 60_000), (0, 20_000), (1, 40_000)):
            record = Record(0, now_ms - old_ms, None, b"v", [])
            data = encode_batch([record])
            await rig.node.appends.append_own(topic.partitions[number], data)
        assert 60 <= (await age_s() or 0) < 90, "of all partitions"
        await rig.node.shares.move_start(topic, 0, "workers", 1)
        assert 40 <= (await age_s() or 0) < 60
        for number, end in ((0, 2), (1, 1)):
            await rig.node.shares.move_start(topic, number, "workers", end)
        assert await age_s() is None


@pytest.mark.parametrize("batch_count", [1, 4])
async def test_the_largest_timestamp_is_that_of_a_record_that_is_left(batch_count: int) -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        times = 1_000, 9_000, 3_000, 2_000
        records = [Record(i, ms, None, b"v", []) for i, ms in enumerate(times)]
        one = [encode_batch(records)]
        batches = one if batch_count == 1 else [batch(b"v", timestamp_ms=ms) for ms in times]
        for data in batches:
            part = {"index": 0, "records": data}
            body = {"acks": -1, "topic_data": [{"name": "t", "partition_data": [part]}]}
            answer = await rig.client().ask(apis.PRODUCE, 9, body)
            assert int(answer.responses[0].partition_responses[0].error_code) == NONE
        for start, expected in (0, (9_000, 1)), (1, (9_000, 1)), (2, (3_000, 2)), (4, (-1, -1)):
            part = {"partition_index": 0, "offset": start}
            topics = [{"name": "t", "partitions": [part]}]
            await rig.client().ask(apis.DELETE_RECORDS, 2, {"topics": topics})
            part = {"partition_index": 0, "timestamp": -3, "current_leader_epoch": -1}
            topics = [{"name": "t", "partitions": [part]}]
            answer = await rig.client().ask(apis.LIST_OFFSETS, 7, {"topics": topics})
            found = answer.topics[0].partitions[0]
            assert (found.timestamp, found.offset) == expected


async def test_the_operations_of_a_group_are_those_that_kafka_knows() -> None:
    async with broker() as rig:
        request = {"groups": ["g"], "include_authorized_operations": True}
        await rig.client().ask(apis.FIND_COORDINATOR, 0, {"key": "g"})
        answer = await rig.client().ask(apis.DESCRIBE_GROUPS, 5, request)
        # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
        operations = sum(1 << bit for bit in (3, 6, 8, 10, 11))
        assert answer.groups[0].authorized_operations == operations
