"""The settings under which a share group acquires records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinators.group_config import group_value

if TYPE_CHECKING:
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.coordination.shares.config import ShareConfig


class ShareGroupSettings(NamedTuple):
    """How a group acquires records: its settings, and its initial position in a partition."""

    config: ShareConfig
    offset_reset: str
    """share.auto.offset.reset"""
    is_committed_only: bool
    """share.isolation.level"""
    dead_letter_topic: str
    """errors.deadletterqueue.topic.name"""


def share_terms(groups: ConfiguredGroups, group_id: str) -> ShareGroupSettings:
    """The settings under which a share group acquires records. Raises MetadataUnavailable."""
    overrides = groups.overrides(group_id)
    return ShareGroupSettings(
        groups.share_config(group_id),
        group_value(overrides, "share.auto.offset.reset"),
        group_value(overrides, "share.isolation.level") == "read_committed",
        group_value(overrides, "errors.deadletterqueue.topic.name"),
    )
