"""How operators read topics in JSON: `acme/orders`, as they write them, in place of keys.

Invariants: pure. Fields that name topics are changed and no others: contents of messages are not
looked at, and names of groups, transactional ids and users, in which a slash is a part of the name,
stay keys.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.records.tenant_names import written

_TOPICS: Final = frozenset(
    {"topic", "topics", "origin", "to", "letter", "record", "dead_letter_topic"}
)
"""Fields whose texts begin with a topic."""
_SETTING: Final = "topic.name"
"""The end of names of settings that name a topic."""
TOPICS_BY_NAME: Final = frozenset({"sent", "origin_unverified"})
"""Fields that count by topic: the topics are the names in them."""
_CONTENTS: Final = frozenset({"key", "headers", "decoded", "properties", "attributes"})
_OF_TOPIC: Final = frozenset({"partitions", "deleted"})
"""A document with one of these and a name is about the topic of that name."""


def with_written_topics(value: Any, field: str = "") -> Any:
    """A JSON document for operators; `field`: where it is in another one."""
    if isinstance(value, str):
        return written(value) if field in _TOPICS or field.endswith(_SETTING) else value
    if isinstance(value, list | tuple):
        return [with_written_topics(item, field) for item in value]
    if not isinstance(value, dict):
        return value
    if field in TOPICS_BY_NAME:
        return {written(topic): count for topic, count in value.items()}
    name = value.get("name")
    is_setting = isinstance(name, str) and name.endswith(_SETTING)
    is_named = field == "topics" or value.get("resource") == "topic" or value.keys() & _OF_TOPIC
    return {
        part: item
        if part in _CONTENTS or (part == "value" and not is_setting)
        else with_written_topics(item, _field(part, is_setting=is_setting, is_named=bool(is_named)))
        for part, item in value.items()
    }


def _field(part: str, *, is_setting: bool, is_named: bool) -> str:
    """What a field is called where it is clear what it names."""
    if is_setting and part in {"value", "default"}:
        return _SETTING
    return "topic" if is_named and part == "name" else part
