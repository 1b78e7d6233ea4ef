"""The settings of brokers: shown with their source, changed while brokers run, followed by all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.kit.broker import running
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.housekeeping.compactor import Compactor
from headrace.broker.services.broker_settings import ALL_BROKERS, SettingSource
from headrace.broker.services.configurations import DELETE, SET, ConfigChange
from headrace.broker.settings.table import SETTINGS
from headrace.errors import ConfigInvalid, RequestInvalid
from headrace.metadata.config_facts import BrokerConfigFact, broker_config_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from headrace.broker.node import Node


def node(
    broker_id: int = 3, metadata: MemoryMetadata | None = None, **config: object
) -> AbstractAsyncContextManager[Node]:
    return running(
        BrokerConfig(broker_id=broker_id, offsets_partition_count=2, **config),  # type: ignore[arg-type]
        metadata=MemoryMetadataStore(metadata or MemoryMetadata()),
        given={"headrace.http": "127.0.0.1:1"},
    )


def shown(one: Node, name: str) -> tuple[str | None, SettingSource]:
    found = {s.setting.name: s for s in one.settings.of_broker(str(one.config.broker_id))}[name]
    return found.value, found.source


async def test_the_change_for_one_broker_counts_more_than_that_for_all_or_the_start():
    async with node(partition_count_default=2) as one:
        assert shown(one, "num.partitions") == ("2", SettingSource.START)
        await one.settings.change(ALL_BROKERS, [ConfigChange("num.partitions", SET, "4")])
        assert shown(one, "num.partitions") == ("4", SettingSource.ALL_BROKERS)
        await one.settings.change("3", [ConfigChange("num.partitions", SET, "5")])
        assert shown(one, "num.partitions") == ("5", SettingSource.BROKER)
        assert one.config.partition_count_default == 5
        (found,) = (s for s in one.settings.of_broker("3") if s.setting.name == "num.partitions")
        assert found.synonyms == [
            ("5", SettingSource.BROKER),
            ("4", SettingSource.ALL_BROKERS),
            ("2", SettingSource.START),
            ("1", SettingSource.DEFAULT),
        ]
        await one.settings.change("3", [ConfigChange("num.partitions", DELETE)])
        await one.settings.change(ALL_BROKERS, [ConfigChange("num.partitions", DELETE)])
        assert shown(one, "num.partitions") == ("2", SettingSource.START)
        assert one.config.partition_count_default == 2


async def test_a_change_reaches_every_broker_and_one_that_starts_later():
    metadata = MemoryMetadata()
    async with node(1, metadata) as one, node(2, metadata) as two:
        changes = [ConfigChange("log.cleaner.backoff.ms", SET, "777")]
        await one.settings.change(ALL_BROKERS, changes)
        await one.settings.change("2", [ConfigChange("num.partitions", SET, "9")])
        await until(lambda: two.config.compaction_interval_ms == 777)
        await until(lambda: two.config.partition_count_default == 9)
        assert one.config.partition_count_default == 1
        async with node(4, metadata) as late:
            assert late.config.compaction_interval_ms == 777


async def test_a_shorter_interval_ends_the_pause_that_has_begun(monkeypatch):
    begun, work = asyncio.Event(), Compactor.round

    async def observed(compactor: Compactor) -> None:
        begun.set()
        await work(compactor)

    monkeypatch.setattr(Compactor, "round", observed)
    async with node(compaction_interval_ms=3_600_000) as one:
        await one.settings.change("3", [ConfigChange("log.cleaner.backoff.ms", SET, "100")])
        await asyncio.wait_for(begun.wait(), 60)


async def test_two_brokers_that_change_settings_at_once_lose_none():
    metadata = MemoryMetadata()
    async with node(1, metadata) as one, node(2, metadata) as two:
        await asyncio.gather(
            *(
                broker.settings.change(ALL_BROKERS, [ConfigChange(name, SET, "888")])
                for broker, name in (
                    (one, "log.cleaner.backoff.ms"),
                    (two, "num.partitions"),
                    (one, "log.retention.check.interval.ms"),
                    (two, "remote.log.manager.task.interval.ms"),
                )
            )
        )
        for broker in (one, two):
            await until(lambda broker=broker: len(broker.settings.overrides(ALL_BROKERS)) == 4)


async def test_topics_follow_a_new_default_unless_they_override_it_or_are_internal():
    async with node() as one:
        await one.topics.create("t")
        await one.topics.create("own", configs={"retention.ms": "5"})
        await one.topics.ensure_internal(OFFSETS_TOPIC)
        before = one.topics.get(OFFSETS_TOPIC).partitions[0].config
        await one.settings.change(ALL_BROKERS, [ConfigChange("log.retention.ms", SET, "99000")])
        assert one.topics.get("t").partitions[0].config.retention_ms == 99_000
        assert one.topics.get("own").partitions[0].config.retention_ms == 5
        assert one.topics.get(OFFSETS_TOPIC).partitions[0].config == before
        await one.topics.create("later")
        assert one.topics.get("later").partitions[0].config.retention_ms == 99_000
        (setting,) = (
            s
            for s in one.services.configurations.of_topic("t")
            if s.definition.name == "retention.ms"
        )
        assert (setting.value, setting.is_broker_default) == ("99000", True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "0", "from 1 to 10000"),
        ("num.partitions", "1_0", "an integer"),
        ("headrace.balance.enable", "yes", "true or false"),
        ("headrace.log.level", "loud", "debug, info, warning, error"),
        ("log.retention.ms", "-2", "retention.ms"),
        ("node.id", "4", "--broker-id"),
        ("log.dirs", "/elsewhere", "--data-dir"),
        ("ssl.key.password", "x", "HEADRACE_SSL_KEY_PASSWORD"),
        ("listener.name.a.ssl.key.password", "x", "of the file of --config"),
        ("listener.name.a.ssl.client.auth", "none", "--listener-setting listener.name.a.ssl"),
        ("headrace.open.to.network", "true", "cannot be changed while"),
        ("no.such.setting", "1", "unknown configuration"),
        ("flush.ms", "1000", "unknown configuration"),
        ("log.level", "info", "did you mean headrace.log.level?"),
    ],
)
async def test_invalid_settings_are_refused_and_nothing_is_stored(name, value, message):
    async with node() as one:
        for broker in (ALL_BROKERS, "3"):
            changes = [
                ConfigChange("log.cleaner.backoff.ms", SET, "777"),
                ConfigChange(name, SET, value),
            ]
            with pytest.raises(ConfigInvalid, match=message):
                await one.settings.change(broker, changes)
            assert one.settings.overrides(broker) == {}
        assert one.config.compaction_interval_ms == 15_000


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.truststore.location"])
async def test_a_file_of_certificates_is_read_again_also_by_the_name_of_a_listener(name):
    """As operators of Kafka do it, whose certificates belong to listeners."""
    readings = []

    async def read():
        readings.append(name)

    given = {name: "/common.pem", f"listener.name.own.{name}": "/own.pem"}
    of_all = {"headrace.http": "127.0.0.1:1", **given}
    async with running(BrokerConfig(broker_id=3, offsets_partition_count=2), given=of_all) as one:
        one.settings._read_certificates = read
        for named, value in (
            (name, "/common.pem"),
            (f"listener.name.client.{name}", "/common.pem"),
            (f"listener.name.own.{name}", "/own.pem"),
        ):
            readings.clear()
            await one.settings.change("3", [ConfigChange(named, SET, value)])
            assert readings == [name], named
        readings.clear()
        for named, value in (
            (f"listener.name.client.{name}", "/other.pem"),
            (f"listener.name.own.{name}", "/common.pem"),
        ):
            with pytest.raises(ConfigInvalid, match=f"--listener-setting {named}=VALUE"):
                await one.settings.change("3", [ConfigChange(named, SET, value)])
        assert not readings
        assert one.settings.overrides("3") == {}


@pytest.mark.parametrize("broker", ["-1", "x", "03", str(2**31), "\u0663"])
async def test_malformed_broker_ids_are_refused(broker):
    async with node() as one:
        with pytest.raises(RequestInvalid):
            await one.settings.change(broker, [ConfigChange("num.partitions", SET, "2")])
        with pytest.raises(RequestInvalid):
            one.settings.of_broker(broker)


async def test_a_dry_run_checks_and_stores_nothing():
    async with node() as one:
        change = [ConfigChange("num.partitions", SET, "2")]
        await one.settings.change(ALL_BROKERS, change, is_dry_run=True)
        assert one.config.partition_count_default == 1
        with pytest.raises(ConfigInvalid):
            await one.settings.change(
                ALL_BROKERS, [ConfigChange("num.partitions", SET, "0")], is_dry_run=True
            )


async def test_settings_stored_by_a_newer_broker_are_ignored_and_kept():
    async with node() as one:
        key = broker_config_key(None)
        stored = {
            "of.the.future": "1",
            "num.partitions": "many",
            "log.cleaner.backoff.ms": "5000",
        }
        await one.metadata.put(key, BrokerConfigFact(stored).encode(), ANY)
        await until(lambda: one.config.compaction_interval_ms == 5_000)
        assert one.config.partition_count_default == 1
        await one.settings.change(ALL_BROKERS, [ConfigChange("num.partitions", SET, "2")])
        entry = await one.metadata.get(key)
        assert entry is not None
        assert BrokerConfigFact.decode(entry.value).configs == stored | {"num.partitions": "2"}


async def test_paths_and_secrets_are_not_shown():
    async with node() as one:
        for found in one.settings.of_broker("3"):
            if found.setting.is_sensitive:
                assert found.value is None
                assert {value for value, _ in found.synonyms} == {None}
        assert shown(one, "headrace.http") == ("127.0.0.1:1", SettingSource.START)


def test_every_field_of_the_configuration_has_a_setting():
    fields = {setting.field for setting in SETTINGS.values()} - {None}
    assert set(BrokerConfig.__slots__) - fields == {"topic_defaults", "ledger_quorum"}


def test_no_two_settings_share_an_option():
    options = [setting.option for setting in SETTINGS.values()]
    options += [setting.negative for setting in SETTINGS.values() if setting.negative]
    assert len(options) == len(set(options))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_default_is_a_value_that_the_setting_accepts(setting):
    if setting.default is not None:
        value = setting.parse(setting.default, "the table")
        assert setting.kind.format(value) == setting.default


async def test_constants_that_kafka_has_as_settings_are_shown_and_refused_with_their_value():
    async with node() as one:
        prefix = "errors.deadletterqueue.topic.name.prefix"
        creation = "errors.deadletterqueue.auto.create.topics.enable"
        assert (shown(one, prefix)[0], shown(one, creation)[0]) == ("", "true")
        with pytest.raises(ConfigInvalid, match=r"always ''"):
            await one.settings.change("3", [ConfigChange(prefix, SET, "dlq.")])
        with pytest.raises(ConfigInvalid, match="always 'true'"):
            await one.settings.replace("3", {creation: "false"})
