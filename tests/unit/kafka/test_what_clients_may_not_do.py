"""What no client may set, claim or read: one test for each hole that was closed."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from tests.kit.broker import broker
from tests.kit.records import batch

from headrace.broker.topics.topic_config import check_config
from headrace.errors import ConfigInvalid, DataCorrupt, StorageUnavailable
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_CONFIG,
    INVALID_RECORD,
    INVALID_REQUEST,
    NONE,
    POLICY_VIOLATION,
    message_of,
)
from headrace.records.batch import DELETE_HORIZON, NAMED
from headrace.records.codec import Record, encode_batch
from headrace.records.identifiers import OFFSETS_TOPIC

SET, DELETE, APPEND = range(3)


@pytest.mark.parametrize(
    "text",
    ["1_000", " 5", "5 ", "\uff11\uff12", "\u0665", "1e3", "0x10", "9" * 5000, "", "+", "5\n"],
)
def test_a_number_is_one_for_every_tool(text):
    for name in ("retention.ms", "segment.bytes", "max.message.bytes", "flush.ms"):
        with pytest.raises(ConfigInvalid):
            check_config(name, text)


@pytest.mark.parametrize("text", ["5", "0", "+5", "0005", str(2**63 - 1)])
def test_numbers_that_kafka_accepts_are_accepted(text):
    check_config("retention.ms", text)


async def _alter(rig, topic: str, name: str, value: str | None, operation: int = SET) -> int:
    change = {"name": name, "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    request = {"resources": [resource], "validate_only": False}
    answer = await rig.client().ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
    return int(answer.responses[0].error_code)


async def test_the_settings_of_internal_topics_stay_as_they_are():
    async with broker() as rig:
        await rig.node.topics.ensure_internal(OFFSETS_TOPIC)
        before = dict(rig.node.topics.get(OFFSETS_TOPIC).fact.configs)
        for name, value, operation in (
            ("cleanup.policy", "delete", SET),
            ("cleanup.policy", None, DELETE),
            ("retention.ms", "1", SET),
        ):
            code = await _alter(rig, OFFSETS_TOPIC, name, value, operation)
            assert code == POLICY_VIOLATION
        resource = {"resource_type": 2, "resource_name": OFFSETS_TOPIC, "configs": []}
        request = {"resources": [resource], "validate_only": False}
        answer = await rig.client().ask(apis.ALTER_CONFIGS, 1, request)
        assert int(answer.responses[0].error_code) == POLICY_VIOLATION
        assert rig.node.topics.get(OFFSETS_TOPIC).fact.configs == before


async def test_a_list_holds_each_word_once():
    async with broker() as rig:
        await rig.node.topics.create("t")
        many = ",".join(["compact", "delete"] * 1000)
        assert await _alter(rig, "t", "cleanup.policy", many) == INVALID_CONFIG
        for _ in range(3):
            assert await _alter(rig, "t", "cleanup.policy", many, APPEND) == NONE
        assert rig.node.topics.get("t").fact.configs["cleanup.policy"] == "delete,compact"


@pytest.mark.parametrize("number", [-2, -(2**63)])
async def test_an_impossible_producer_id_is_refused(number):
    async with broker() as rig:
        await rig.node.topics.create("t")
        records = batch(b"v", producer_id=number, producer_epoch=0, base_sequence=0)
        data = {"name": "t", "partition_data": [{"index": 0, "records": records}]}
        request = {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": [data]}
        answer = await rig.client().ask(apis.PRODUCE, 9, request)
        assert int(answer.responses[0].partition_responses[0].error_code) == INVALID_RECORD


@pytest.mark.parametrize("bit", [DELETE_HORIZON, NAMED])
async def test_batch_attributes_reserved_to_brokers_are_refused_from_clients(bit):
    async with broker() as rig:
        await rig.node.topics.create("t", configs={"cleanup.policy": "compact"})
        records = bytearray(encode_batch([Record(0, 1_700_000_000_000, b"k", None, [])]))
        struct.pack_into(">H", records, 21, bit)
        struct.pack_into(">I", records, 17, crc32c(records[21:]))
        data = {"name": "t", "partition_data": [{"index": 0, "records": bytes(records)}]}
        request = {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": [data]}
        answer = await rig.client().ask(apis.PRODUCE, 9, request)
        assert int(answer.responses[0].partition_responses[0].error_code) == INVALID_RECORD


@pytest.mark.parametrize(("number", "epoch"), [(-1, -1), (0, 0), (7, 3), (2**40, 32766)])
async def test_an_idempotent_producer_gets_an_id_that_no_other_has(number, epoch):
    """@platformatic/kafka 1.35 names producer 0 in epoch 0."""

    async with broker() as rig:
        request = {"transaction_timeout": 1000, "producer_id": number, "producer_epoch": epoch}
        got = [await rig.client().ask(apis.INIT_PRODUCER_ID, 4, request) for _ in range(3)]
        assert {(int(one.error_code), one.producer_epoch) for one in got} == {(NONE, 0)}
        assert len({one.producer_id for one in got} - {number}) == 3


@pytest.mark.parametrize("transactional_id", [None, "tx"])
@pytest.mark.parametrize(("number", "epoch"), [(-1, 0), (5, -1)])
async def test_a_producer_id_and_its_epoch_are_named_together(transactional_id, number, epoch):
    async with broker() as rig:
        request = {
            "transactional_id": transactional_id,
            "transaction_timeout": 1000,
            "producer_id": number,
            "producer_epoch": epoch,
        }
        answer = await rig.client().ask(apis.INIT_PRODUCER_ID, 4, request)
        assert int(answer.error_code) == INVALID_REQUEST


def test_error_messages_reveal_no_file_paths():
    for error in (
        DataCorrupt("the metadata in /srv/secret/place/metadata.sqlite is damaged (x): restore it"),
        StorageUnavailable("[Errno 28] No space left on device: '/srv/secret/place/wal/1.wal'"),
    ):
        told = message_of(error) or ""
        assert "secret" not in told
        assert "(a path)" in told
    for words in ("at 3/4 of it", "and/or", "s3://bucket/prefix/of/it", "1/2/3"):
        assert message_of(StorageUnavailable(words)) == words
