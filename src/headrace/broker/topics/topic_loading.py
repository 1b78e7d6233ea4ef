"""Reads the topics of a broker that is alone with its metadata.

Invariants: a fact that cannot be decoded is damage of its topic, not of the others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt
from headrace.metadata.facts import TOPICS, topic_of_key

if TYPE_CHECKING:
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)


async def load_topics(topics: Topics, metadata: MetadataStore) -> None:
    """Read all topics. Raises MetadataUnavailable, FormatUnsupported."""
    for entry in await metadata.list(TOPICS):
        try:
            topics.apply(entry.key, entry)
        except DataCorrupt as error:
            topics.damaged_facts[entry.key] = str(error)
            log.warning("topic %s is not served: %s", topic_of_key(entry.key), error)
