"""Administration by librdkafka, kafka-python and aiokafka (Java's is in test_java.py)."""

from __future__ import annotations

import pytest
from tests.integration.clients import (
    TIMEOUT_S,
    Confluent,
    Rec,
    admin,
    create_topic,
    watermarks,
)
from tests.waiting import wait_until

# --- librdkafka ------------------------------------------------------------------------------


def results(futures: dict) -> list:
    """What all futures of an admin call give; the client must outlive this call."""
    return [future.result(TIMEOUT_S) for future in futures.values()]


def refusal(futures: dict) -> int:
    """The error code with which the one future fails."""
    from confluent_kafka import KafkaException

    (future,) = futures.values()
    with pytest.raises(KafkaException) as caught:
        future.result(TIMEOUT_S)
    return caught.value.args[0].code()


def test_confluent_topics_and_partitions(broker, name):
    from confluent_kafka import KafkaError, TopicCollection
    from confluent_kafka.admin import NewPartitions, NewTopic

    client = admin(broker.kafka)
    topic = NewTopic(name, 3, 1, config={"retention.ms": "99000"})
    results(client.create_topics([topic], validate_only=True))
    assert name not in client.list_topics(timeout=TIMEOUT_S).topics
    results(client.create_topics([topic]))
    told = client.list_topics(timeout=TIMEOUT_S)
    assert len(told.topics[name].partitions) == 3
    assert told.topics[name].partitions[2].leader == 0
    assert refusal(client.create_topics([topic])) == KafkaError.TOPIC_ALREADY_EXISTS
    bad = NewTopic("not/a/name", 1, 1)
    assert refusal(client.create_topics([bad])) == KafkaError.TOPIC_EXCEPTION
    bad = NewTopic(name + "-x", 1, 3)
    assert refusal(client.create_topics([bad])) == KafkaError.INVALID_REPLICATION_FACTOR
    bad = NewTopic(name + "-x", 1, 1, config={"no.such": "1"})
    assert refusal(client.create_topics([bad])) == KafkaError.INVALID_CONFIG
    results(client.create_partitions([NewPartitions(name, 5)]))
    (told,) = results(client.describe_topics(TopicCollection([name])))
    assert len(told.partitions) == 5
    assert not told.is_internal
    fewer = client.create_partitions([NewPartitions(name, 2)])
    assert refusal(fewer) == KafkaError.INVALID_PARTITIONS
    results(client.delete_topics([name]))
    assert refusal(client.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in client.list_topics(timeout=TIMEOUT_S).topics


def test_confluent_configs(broker, name):
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

    create_topic(broker.kafka, name, retention_ms=99_000)
    client = admin(broker.kafka)

    def configs() -> dict:
        return results(client.describe_configs([ConfigResource("TOPIC", name)]))[0]

    def change(operation, key, value=None):
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource("TOPIC", name, incremental_configs=[entry])
        return client.incremental_alter_configs([resource])

    assert configs()["retention.ms"].value == "99000"
    assert not configs()["retention.ms"].is_default
    results(change(AlterConfigOpType.SET, "segment.bytes", "100000"))
    results(change(AlterConfigOpType.APPEND, "cleanup.policy", "compact"))
    assert set(configs()["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    results(change(AlterConfigOpType.SUBTRACT, "cleanup.policy", "compact"))
    results(change(AlterConfigOpType.DELETE, "retention.ms"))
    assert configs()["retention.ms"].is_default
    assert configs()["segment.bytes"].value == "100000"
    bad = change(AlterConfigOpType.SET, "segment.bytes", "many")
    assert refusal(bad) == KafkaError.INVALID_CONFIG
    # The older AlterConfigs replaces all that was set.
    with pytest.warns(DeprecationWarning, match="incremental"):
        replaced = client.alter_configs([ConfigResource("TOPIC", name, {"flush.ms": "5"})])
    results(replaced)
    assert configs()["flush.ms"].value == "5"
    assert configs()["segment.bytes"].is_default
    (broker_configs,) = results(client.describe_configs([ConfigResource("BROKER", "0")]))
    assert broker_configs["node.id"].value == "0"
    assert broker_configs["node.id"].source == ConfigSource.STATIC_BROKER_CONFIG.value


def test_confluent_records_offsets_and_cluster(broker, name):
    from confluent_kafka import KafkaError, Producer, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    create_topic(broker.kafka, name, retention_ms=-1)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(10):
        producer.produce(name, str(number), timestamp=1_000_000 + (number * 7) % 10)
    assert producer.flush(TIMEOUT_S) == 0
    client = admin(broker.kafka)
    at = TopicPartition(name, 0)

    def offset(spec) -> int:
        return results(client.list_offsets({at: spec}))[0].offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 7  # 7 * 7 % 10 == 9
    assert offset(OffsetSpec.for_timestamp(1_000_005)) == 1  # the first that is late enough
    assert offset(OffsetSpec.for_timestamp(2_000_000)) == -1
    (deleted,) = results(client.delete_records([TopicPartition(name, 0, 4)]))
    assert deleted.low_watermark == 4
    assert offset(OffsetSpec.earliest()) == 4
    beyond = client.delete_records([TopicPartition(name, 0, 11)])
    assert refusal(beyond) == KafkaError.OFFSET_OUT_OF_RANGE
    results(client.delete_records([TopicPartition(name, 0, -1)]))
    assert watermarks(broker.kafka, name) == (10, 10)
    told = client.describe_cluster().result(TIMEOUT_S)
    assert told.controller.id == 0
    assert [f"{node.host}:{node.port}" for node in told.nodes] == [broker.kafka]
    assert told.cluster_id == client.list_topics(timeout=TIMEOUT_S).cluster_id


def test_confluent_groups(broker, name):
    from confluent_kafka import (
        Consumer,
        ConsumerGroupState,
        ConsumerGroupTopicPartitions,
        KafkaError,
        TopicPartition,
    )

    create_topic(broker.kafka, name, 2)
    Confluent.produce(broker.kafka, name, [Rec(None, b"v")] * 10)
    client = admin(broker.kafka)
    settings = {"bootstrap.servers": broker.kafka, "group.id": name, "client.id": "member"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    assert consumer.poll(TIMEOUT_S).value() == b"v"
    consumer.commit(asynchronous=False)

    def described():
        return results(client.describe_consumer_groups([name]))[0]

    try:
        assert described().state == ConsumerGroupState.STABLE
        (member,) = described().members
        assert member.client_id == "member"
        assert {at.partition for at in member.assignment.topic_partitions} == {0, 1}
        assert refusal(client.delete_consumer_groups([name])) == KafkaError.NON_EMPTY_GROUP
    finally:
        consumer.close()
    wait_until(lambda: described().state == ConsumerGroupState.EMPTY)
    listed = client.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(TIMEOUT_S)
    assert name in {group.group_id for group in listed.valid}
    wanted = [TopicPartition(name, 0, 7), TopicPartition(name, 1, 3)]
    results(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, wanted)]))
    (told,) = results(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
    assert {at.partition: at.offset for at in told.topic_partitions} == {0: 7, 1: 3}
    results(client.delete_consumer_groups([name]))
    assert refusal(client.delete_consumer_groups([name])) == KafkaError.GROUP_ID_NOT_FOUND
    listed = client.list_consumer_groups().result(TIMEOUT_S)
    assert name not in {group.group_id for group in listed.valid}
    assert not listed.errors


def test_confluent_elections(broker, name):
    from confluent_kafka import ElectionType, KafkaError, TopicPartition

    create_topic(broker.kafka, name)
    client = admin(broker.kafka)
    for election in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        wanted = [TopicPartition(name, 0), TopicPartition(name, 9)]
        found = client.elect_leaders(election, wanted).result(TIMEOUT_S)
        codes = {at.partition: error.code() for at, error in found.items()}
        assert codes == {0: KafkaError.ELECTION_NOT_NEEDED, 9: KafkaError.UNKNOWN_TOPIC_OR_PART}
    assert client.elect_leaders(ElectionType.PREFERRED, None).result(TIMEOUT_S) == {}


# --- kafka-python ----------------------------------------------------------------------------


@pytest.fixture
def python_admin(broker):
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield client
    client.close()


def test_kafka_python_topics_configs_and_cluster(python_admin, broker, name):
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

    topic = NewTopic(name, num_partitions=2, replication_factor=1)
    python_admin.create_topics([topic])
    assert name in python_admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        python_admin.create_topics([topic])
    (told,) = python_admin.describe_topics([name])
    assert len(told["partitions"]) == 2
    python_admin.create_partitions({name: 4})
    (told,) = python_admin.describe_topics([name])
    assert len(told["partitions"]) == 4
    resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "1234000"})
    python_admin.alter_configs([resource])
    told = python_admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    assert "1234000" in str(told)
    cluster = python_admin.describe_cluster()
    assert cluster["cluster_id"]
    assert str(broker.address[1]) in str(cluster["brokers"])
    python_admin.delete_topics([name])
    assert name not in python_admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        python_admin.delete_topics([name])


def test_metrics_pushed_by_librdkafka_are_shown(python_admin, broker, name):
    from confluent_kafka import Producer
    from kafka.admin import ConfigResource, ConfigResourceType

    create_topic(broker.kafka, name)
    kind = ConfigResourceType.CLIENT_METRICS
    settings = {"metrics": "*", "interval.ms": "100", "match": f"client_id={name}"}
    subscription = f"{name}-metrics"
    python_admin.alter_configs([ConfigResource(kind, subscription, settings)])
    assert subscription in str(python_admin.list_config_resources())
    client = Producer({"bootstrap.servers": broker.kafka, "client.id": name, "log_level": 0})

    def shown() -> list[str]:
        client.produce(name, b"v")
        client.flush(1)
        wanted = "headrace_client_metric{", f'client_id="{name}"', "rdkafka"
        lines = broker.get("/metrics")[1].splitlines()
        return [line for line in lines if all(part in line for part in wanted)]

    assert wait_until(shown)
    deletions = dict.fromkeys(settings, ("DELETE", None))
    python_admin.alter_configs([ConfigResource(kind, subscription, deletions)])
    assert subscription not in str(python_admin.list_config_resources())


def test_kafka_python_leaders_and_reassignments(python_admin, broker, name):
    from kafka import TopicPartition
    from kafka.errors import (
        InvalidReplicationAssignmentError,
        NoReassignmentInProgressError,
        UnknownTopicOrPartitionError,
        UnsupportedVersionError,
    )

    create_topic(broker.kafka, name)
    at, missing = TopicPartition(name, 0), TopicPartition(name, 9)
    alter = python_admin.alter_partition_reassignments
    assert alter({at: [0], missing: [0]}) == {at: None, missing: UnknownTopicOrPartitionError}
    assert alter({at: [7]}) == {at: InvalidReplicationAssignmentError}
    assert alter({at: None}) == {at: NoReassignmentInProgressError}
    assert python_admin.list_partition_reassignments() == {}
    python_admin.elect_leaders(0, {name: [0]})
    with pytest.raises(UnknownTopicOrPartitionError):
        python_admin.elect_leaders(1, {name: [9]})
    with pytest.raises(UnsupportedVersionError):
        python_admin.describe_metadata_quorum()
    assert name in str(python_admin.list_config_resources())


def test_kafka_python_records_and_groups(python_admin, broker, name):
    from kafka import KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    create_topic(broker.kafka, name)
    Confluent.produce(broker.kafka, name, [Rec(None, b"v")] * 10)
    at = TopicPartition(name, 0)
    python_admin.delete_records({at: 4})
    assert watermarks(broker.kafka, name) == (4, 10)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.kafka, group_id=name, enable_auto_commit=False
    )
    try:
        consumer.assign([at])
        consumer.commit({at: OffsetAndMetadata(6, "six", -1)})
    finally:
        consumer.close()
    assert name in str(python_admin.list_groups())
    assert name in str(python_admin.describe_groups([name]))
    assert "six" in str(python_admin.list_group_offsets(name))
    python_admin.alter_group_offsets(name, {at: OffsetAndMetadata(8, "eight", -1)})
    assert "eight" in str(python_admin.list_group_offsets(name))
    python_admin.delete_group_offsets(name, [at])
    assert "eight" not in str(python_admin.list_group_offsets(name))
    python_admin.delete_groups([name])
    assert f"'{name}'" not in str(python_admin.list_groups())


# --- aiokafka --------------------------------------------------------------------------------


async def test_aiokafka_administration(broker, name):
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    client = AIOKafkaAdminClient(bootstrap_servers=broker.kafka)
    await client.start()
    try:
        made = await client.create_topics([NewTopic(name, 2, 1)])
        assert [error[1] for error in made.topic_errors] == [0]
        again = await client.create_topics([NewTopic(name, 2, 1)])
        assert [error[1] for error in again.topic_errors] == [36]
        assert name in await client.list_topics()
        await client.create_partitions({name: NewPartitions(3)})
        (told,) = await client.describe_topics([name])
        assert len(told["partitions"]) == 3
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "77000"})
        await client.alter_configs([resource])
        plain = ConfigResource(ConfigResourceType.TOPIC, name)
        assert "77000" in str(await client.describe_configs([plain]))
        assert (await client.describe_cluster())["cluster_id"]
        assert isinstance(await client.list_consumer_groups(), list)
        await client.delete_topics([name])
        assert name not in await client.list_topics()
    finally:
        await client.close()
