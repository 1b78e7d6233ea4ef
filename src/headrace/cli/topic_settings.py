"""The settings of a topic, as its broker applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.client import kafka_admin
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


def topic_settings(session: CliSession, topic: str) -> dict[str, str]:
    """All settings with their values in effect. Raises CommandFailed."""
    resource = kafka_admin().ConfigResource(kafka_admin().ResourceType.TOPIC, topic)
    futures = session.admin().describe_configs([resource], request_timeout=session.timeout_s)
    found = session.answer(
        futures[resource], f"settings of topic {topic!r}", Right("describe_configs", "topic", topic)
    )
    return {name: entry.value for name, entry in found.items() if entry.value is not None}
