"""The settings under which a share group acquires records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
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
