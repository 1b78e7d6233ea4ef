"""Consumer groups of RocketMQ: share groups, with RocketMQ's defaults if its clients create them.

Invariants: a group that has settings, or has begun on a topic, keeps what it has. Otherwise its
first RocketMQ client creates it, as in RocketMQ: 17 attempts, then `%DLQ%group`; from the start of
the topic, so that no message is missed. The settings are the group's own, to be seen and changed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.group_config import DEAD_LETTER_TOPIC, LITE
from headrace.broker.services.configurations import SET, ConfigChange, VersionMismatch
from headrace.rocketmq.names import default_dead_letter_topic
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.services.services import Services
    from headrace.coordination.shares.config import ShareConfig

ATTEMPTS_MAX: Final = 17
"""One delivery and 16 retries."""
BACKOFF_S: Final = (
    *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1_200, 1_800, 3_600, 7_200),
)
"""RocketMQ's delay before each retry of a push consumer."""


class RocketGroups:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._creating = FairLock()

    async def ensure(self, group_id: str, *, is_lite: bool = False) -> None:
        """Give a new group RocketMQ's defaults; `is_lite`: it consumes lite topics.

        Raises GroupKindMismatch for a consumer group's id, ConfigInvalid, MetadataUnavailable.
        """
        while not self._exists(group_id):
            async with self._creating:
                if self._exists(group_id):
                    return
                await self._services.groups.check_is_free_for_shares(group_id)
                configurations = self._services.configurations
                version = configurations.version_of_group(group_id)
                changes = [
                    ConfigChange("share.auto.offset.reset", SET, "earliest"),
                    ConfigChange("share.delivery.count.limit", SET, str(ATTEMPTS_MAX)),
                    ConfigChange(DEAD_LETTER_TOPIC, SET, default_dead_letter_topic(group_id)),
                ]
                if is_lite:
                    changes.append(ConfigChange(LITE, SET, "true"))
                # An administrator, or another broker's client, may be faster.
                with contextlib.suppress(VersionMismatch):
                    await configurations.change_group(group_id, changes, version=version)

    def _exists(self, group_id: str) -> bool:
        has_settings = bool(self._services.configurations.overrides_of_group(group_id))
        return has_settings or self._services.share_groups.has(group_id)

    def config(self, group_id: str) -> ShareConfig:
        """The group's settings. Raises MetadataUnavailable."""
        return self._services.queues.terms(group_id).config

    def is_fifo(self, group_id: str) -> bool:
        """Whether clients consume in order. Raises MetadataUnavailable."""
        config = self.config(group_id)
        return config.is_ordered or config.is_serial or config.is_lite

    def backoff_ms(self, group_id: str) -> Sequence[int]:
        """The delays before each retry of a push consumer: the group's, or RocketMQ's."""
        return self.config(group_id).backoff_ms or [step * 1_000 for step in BACKOFF_S]
