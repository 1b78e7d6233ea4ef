"""Assembles the group coordinator's dependencies: topics and group settings.

Invariants: wiring only; the parts know nothing of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_config import (
    consumer_group_settings,
    streams_group_settings,
)
from headrace.broker.coordinators.group_coordinator import (
    ConsumerGroupDependencies,
    StreamsGroupDependencies,
)
from headrace.broker.coordinators.streams_topics import StreamsTopics
from headrace.broker.coordinators.subscribed_topics import SubscribedTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.runtime.tasks import Tasks


def group_dependencies(
    config: BrokerConfig,
    topics: Topics,
    groups: ConfiguredGroups,
    rack_of: Callable[[Topic, int], str | None],
    is_share_group: Callable[[str], bool],
    tasks: Tasks,
) -> ConsumerGroupDependencies:
    """See the module."""
    return ConsumerGroupDependencies(
        SubscribedTopics(topics.readable, rack_of),
        lambda group_id: consumer_group_settings(groups.overrides(group_id), config),
        is_share_group,
        StreamsGroupDependencies(
            lambda group_id: streams_group_settings(groups.overrides(group_id), config),
            StreamsTopics(topics, tasks),
        ),
    )
