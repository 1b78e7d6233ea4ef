"""Administration as every face asks for it."""

from __future__ import annotations

import pytest
from tests.kit.broker import running

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.coordinators.group_config import consumer_group_settings
from headrace.broker.services.configurations import APPEND, DELETE, SET, SUBTRACT, ConfigChange
from headrace.broker.services.topic_service import NewTopic
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.errors import (
    AssignmentInvalid,
    ConfigInvalid,
    PartitionsInvalid,
    PolicyViolation,
    RequestInvalid,
    TopicExists,
    TopicUnknown,
)

CONFIG = BrokerConfig(broker_id=3, offsets_partition_count=2)


async def test_a_dry_run_checks_what_the_change_checks_and_changes_nothing() -> None:
    async with running(CONFIG) as one:
        admin = one.services.topics
        await admin.create(NewTopic("t", 2), is_dry_run=True)
        assert one.topics.names() == []
        with pytest.raises(PartitionsInvalid):
            await admin.create(NewTopic("t", 0), is_dry_run=True)
        await admin.create(NewTopic("t", 2))
        with pytest.raises(TopicExists):
            await admin.create(NewTopic("t"), is_dry_run=True)
        await admin.add_partitions("t", 5, is_dry_run=True)
        with pytest.raises(PartitionsInvalid):
            await admin.add_partitions("t", 2, is_dry_run=True)
        assert len(one.topics.get("t").partitions) == 2
        assert (await admin.delete("t", is_dry_run=True))[0] == "t"
        assert one.topics.names() == ["t"]
        with pytest.raises(TopicUnknown):
            await admin.delete("u", is_dry_run=True)
        await one.services.groups.ensure_offsets_topic()
        with pytest.raises(PolicyViolation):
            await admin.delete("__consumer_offsets", is_dry_run=True)
        await admin.delete(topic_id=one.topics.get("t").id)
        assert "t" not in one.topics.by_name


async def test_an_assignment_names_each_partition_once_and_live_brokers_alone() -> None:
    async with running(CONFIG) as one:
        admin = one.services.topics
        made = await admin.create(NewTopic("t", assignments=[(1, (3,)), (0, (3,))]))
        assert made.partition_count == 2
        for wrong in ([(1, (3,))], [(0, (4,))], [(0, (3, 4))], [(0, (3,)), (0, (3,))]):
            with pytest.raises(AssignmentInvalid):
                await admin.create(NewTopic("u", assignments=wrong))
        with pytest.raises(RequestInvalid):
            await admin.create(NewTopic("u", 1, assignments=[(0, (3,))]))
        with pytest.raises(AssignmentInvalid):
            await admin.add_partitions("t", 3, [(0, (4,))])


async def test_settings_are_changed_as_a_whole_or_not_at_all() -> None:
    async with running(CONFIG) as one:
        await one.services.topics.create(NewTopic("t"))
        configurations = one.services.configurations
        changes = [
            ConfigChange("retention.ms", SET, "1000"),
            ConfigChange("cleanup.policy", APPEND, "compact"),
        ]
        await configurations.change_topic("t", changes, is_dry_run=True)
        assert not any(setting.is_override for setting in configurations.of_topic("t"))
        with pytest.raises(ConfigInvalid):
            await configurations.change_topic("t", [*changes, ConfigChange("no", SET, "1")])
        assert not any(setting.is_override for setting in configurations.of_topic("t"))
        await configurations.change_topic("t", changes)
        await configurations.change_topic(
            "t",
            [
                ConfigChange("retention.ms", DELETE),
                ConfigChange("cleanup.policy", SUBTRACT, "delete"),
            ],
        )
        overrides = {
            setting.definition.name: setting.value
            for setting in configurations.of_topic("t")
            if setting.is_override
        }
        assert overrides == {"cleanup.policy": "compact"}
        await configurations.replace_topic("t", {"retention.ms": "5"})
        assert one.topics.get("t").fact.configs == {"retention.ms": "5"}


async def test_offsets_are_committed_for_partitions_that_exist_and_results_keep_their_order():
    async with running(CONFIG) as one:
        await one.services.topics.create(NewTopic("t", 2))
        admin = one.services.groups
        offsets = [
            OffsetToCommit("gone", 0, 1),
            OffsetToCommit("t", 1, 7),
            OffsetToCommit("t", 2, 8),
        ]
        reply = await admin.commit(CommitCommand("g", NO_GENERATION, "", None, offsets))
        assert [(r.topic, r.partition) for r in reply.results] == [
            ("gone", 0),
            ("t", 1),
            ("t", 2),
        ]
        errors = [result.error for result in reply.results]
        assert isinstance(errors[0], TopicUnknown)
        assert errors[1] is None
        assert isinstance(errors[2], TopicUnknown)
        found = await admin.offsets("g")
        assert [(o.topic, o.partition, o.offset) for o in found.offsets] == [("t", 1, 7)]


async def test_groups_have_the_brokers_session_and_heartbeat_unless_they_say_otherwise() -> None:
    config = BrokerConfig(
        group_consumer_session_timeout_ms=30_000, group_consumer_heartbeat_interval_ms=700
    )
    async with running(CONFIG) as one:
        configs = one.services.configurations
        name = "consumer.session.timeout.ms"
        await configs.change_group("g", [ConfigChange(name, SET, "20000")])
        overrides = one.group_configs.overrides("g")
        assert consumer_group_settings(overrides, config) == (20_000, 700)
        assert consumer_group_settings({}, config) == (30_000, 700)
        shown = {setting.definition.name: setting.value for setting in configs.of_group("g")}
        assert (shown[name], shown["consumer.heartbeat.interval.ms"]) == ("20000", "5000")
        with pytest.raises(ConfigInvalid):
            await configs.change_group("g", [ConfigChange(name, SET, "1")])
