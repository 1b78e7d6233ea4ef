"""Validates topic names, partition counts and configurations.

Invariants: checks the request against what this broker supports; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.broker_config import ACL
from headrace.broker.topics.overrides import is_remote, log_config, message_type, replaces_objects
from headrace.broker.topics.topic_config import LITE, ONE_COPY, QUORUM, check_config
from headrace.errors import (
    ConfigInvalid,
    PartitionsInvalid,
    ReplicationFactorInvalid,
    TopicExists,
    TopicNameInvalid,
)
from headrace.log.tiering import SAME_AS_RETENTION
from headrace.records.identifiers import INTERNAL_TOPICS, is_topic_name
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.topic import Topic
    from headrace.log.environment import Environment

REPLICATION_FACTOR_MAX = 9


class TopicChecks:
    """The checks of one broker."""

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        *,
        is_standalone: bool,
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
        topics: Mapping[str, Topic],
    ) -> None:
        """Raise the error that creating such a topic, besides those of `topics`, would return."""
        if not is_topic_name(name_in(name) if self._config.authorizer == ACL else name):
            raise TopicNameInvalid(
                f"{name[:249]!r} is not a valid topic name: use 1 to 249 of the characters "
                "a-z A-Z 0-9 . _ -, but not . or .."
            )
        if name in topics:
            raise TopicExists(f"topic {name!r} already exists")
        # Kafka's metrics replace . by _, so Kafka refuses such pairs. Accepting them would make it
        # impossible to migrate back.
        folded = name.replace(".", "_")
        if "." in name or "_" in name:
            for other in (*topics, *INTERNAL_TOPICS):
                if other != name and other.replace(".", "_") == folded:
                    raise TopicNameInvalid(
                        f"{name!r} collides with topic {other!r}: the names differ only in . and _"
                    )
        self.check_partition_count(partition_count)
        most = 1 if self._is_standalone else REPLICATION_FACTOR_MAX
        if not 1 <= replication_factor <= most:
            raise ReplicationFactorInvalid(
                f"replication factor {replication_factor} is not possible: use 1 to {most}, "
                "or -1 for the default; the storage determines how many copies are kept"
            )
        self.check_configs(configs, {})

    def check_configs(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Raise ConfigInvalid for overrides that are new or differ from those in `before`."""
        for key, value in configs.items():
            if before.get(key) != value:  # unchanged values stay, perhaps set by a newer broker
                check_config(key, value)
        tier = self._environment.tier
        has_tables = tier is not None and tier.tables is not None
        check_tiering(configs, before, has_objects=tier is not None, has_tables=has_tables)
        check_lite(configs, before)
        check_quorum(configs, before, is_replicated=self._environment.is_shared)

    def check_partition_count(self, count: int) -> None:
        """Raise PartitionsInvalid unless a topic may have `count` partitions."""
        if not 1 <= count <= self._config.partition_count_max:
            raise PartitionsInvalid(
                f"{count} partitions are not possible: use 1 to {self._config.partition_count_max}"
            )


def check_lite(configs: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raise ConfigInvalid if compaction would delete messages of lite topics, whose names are the
    keys of their records."""

    def is_compacted(values: Mapping[str, str]) -> bool:
        return message_type(values) == LITE and log_config(values).is_compacted

    if is_compacted(configs) and not is_compacted(before):
        raise ConfigInvalid(
            "headrace.message.type=lite is not possible with cleanup.policy=compact: compaction"
            " keeps one message of each lite topic and deletes the others; use"
            " cleanup.policy=delete, or another message type"
        )


def check_table_replacing(configs: Mapping[str, str], *, has_tables: bool) -> None:
    """Raise ConfigInvalid unless the topic's table can give its records back byte for byte."""
    reasons = {
        "this broker reads no tables; start it with --tables": not has_tables,
        "the topic is compacted": log_config(configs).is_compacted,
        "headrace.table is not append": configs.get("headrace.table") != "append",
        "headrace.table.value is not binary": (
            configs.get("headrace.table.value", "binary") != "binary"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigInvalid(f"headrace.table.replaces.objects=true is not possible: {reason}")


def check_tiering(
    configs: Mapping[str, str],
    before: Mapping[str, str],
    *,
    has_objects: bool,
    has_tables: bool = False,
) -> None:
    """Raise ConfigInvalid if a topic's tiering overrides contradict each other (KIP-405).

    `before` holds the present overrides: what is enabled stays enabled, whatever the broker
    supports.
    """
    if not is_remote(configs):
        if replaces_objects(configs):
            raise ConfigInvalid(
                "headrace.table.replaces.objects=true is not possible without"
                " remote.storage.enable=true"
            )
        return
    if not has_objects and not is_remote(before):
        raise ConfigInvalid(
            "remote.storage.enable=true is not possible: this broker has no object "
            "storage; start it with --objects"
        )
    config = log_config(configs)
    if replaces_objects(configs):
        check_table_replacing(configs, has_tables=has_tables or replaces_objects(before))
    for name, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local != SAME_AS_RETENTION and whole != -1 and (local == -1 or local > whole):
            raise ConfigInvalid(
                f"local.retention.{name}={local} exceeds retention.{name}={whole}: a local "
                "copy cannot outlive its ledger; lower the first or raise the second"
            )


def check_quorum(
    configs: Mapping[str, str], before: Mapping[str, str], *, is_replicated: bool
) -> None:
    """Raise ConfigInvalid if a topic asks for replicated ledgers on a broker that keeps one copy.

    `before` as for `check_tiering`.
    """
    asked = configs.get(QUORUM, ONE_COPY)
    if not is_replicated and asked not in {ONE_COPY, before.get(QUORUM)}:
        raise ConfigInvalid(
            f"{QUORUM}={asked} is not possible: this broker keeps one copy of each ledger "
            "in local files; replication requires BookKeeper (headrace serve --zookeeper)"
        )
