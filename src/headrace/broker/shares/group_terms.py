"""How a share group takes records, as its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.coordination.shares.config import ShareConfig


class GroupTerms(NamedTuple):
    """How a group takes records: settings, and where it begins on a partition."""

    config: ShareConfig
    offset_reset: str
    """share.auto.offset.reset"""
    is_committed_only: bool
    """share.isolation.level"""
    dead_letter_topic: str
    """errors.deadletterqueue.topic.name"""
