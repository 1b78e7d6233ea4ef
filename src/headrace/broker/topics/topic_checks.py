"""What a topic may be: its name, its partitions, its configuration.

Invariants: looks at what is asked for and at what this broker can do; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topics.topic_config import check_config, check_quorum, check_tiering
from headrace.errors import (
    PartitionsInvalid,
    ReplicationFactorInvalid,
    TopicExists,
    TopicNameInvalid,
)
from headrace.records.identifiers import INTERNAL_TOPICS, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.broker.broker_config import BrokerConfig
    from headrace.log.environment import Environment

REPLICATION_FACTOR_MAX = 9


class TopicChecks:
    """Of one broker."""

    def __init__(
        self, environment: Environment, config: BrokerConfig, *, is_standalone: bool
    ) -> None:
        self._environment = environment
        self._config = config
        self._is_standalone = is_standalone

    def check_new(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        names: Collection[str],
    ) -> None:
        """Raises the error that creating such a topic beside those of `names` would meet."""
        if not is_topic_name(name):
            raise TopicNameInvalid(
                f"{name[:249]!r} is no topic name: 1 to 249 of the characters a-z A-Z 0-9 . _ -,"
                " and not . or .."
            )
        if name in names:
            raise TopicExists(f"topic {name!r} is there already")
        # Kafka's metrics fold . into _, so it refuses such pairs; so do we, or a cluster could
        # not be moved back.
        folded = name.replace(".", "_")
        if "." in name or "_" in name:
            for other in (*names, *INTERNAL_TOPICS):
                if other != name and other.replace(".", "_") == folded:
                    raise TopicNameInvalid(f"{name!r} collides with the topic {other!r}: . and _")
        self.check_partition_count(partition_count)
        most = 1 if self._is_standalone else REPLICATION_FACTOR_MAX
        if not 1 <= replication_factor <= most:
            raise ReplicationFactorInvalid(
                f"replication factor {replication_factor} is impossible: from 1 to {most}, or -1"
                " for the default; how often bytes are kept is a matter of the storage"
            )
        self.check_configs(configs, {})

    def check_configs(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Raises ConfigInvalid for overrides that were not there `before` as they are now."""
        for key, value in configs.items():
            if before.get(key) != value:  # else it stands already; perhaps a newer broker set it
                check_config(key, value)
        check_tiering(configs, before, has_objects=self._environment.tier is not None)
        check_quorum(configs, before, is_replicated=self._environment.is_shared)

    def check_partition_count(self, count: int) -> None:
        """Raises PartitionsInvalid."""
        if not 1 <= count <= self._config.partition_count_max:
            raise PartitionsInvalid(
                f"{count} partitions are not possible: from 1 to {self._config.partition_count_max}"
            )
