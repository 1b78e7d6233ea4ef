"""How operators read names in JSON: `acme/orders`, as they write them, in place of keys.

Invariants: pure. Fields that name topics, groups, transactional ids, users and principals are
changed and no others: contents of messages are not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.records.tenant_names import with_written_keys, written, written_topic

if TYPE_CHECKING:
    from collections.abc import Callable

_TOPICS: Final = frozenset(
    {"topic", "topics", "origin", "to", "letter", "record", "dead_letter_topic"}
)
"""Fields whose texts begin with a topic."""
_NAMES: Final = _TOPICS | {
    *("group", "groups", "group_id", "group_name", "transactional_id", "transactional_ids"),
    *("user", "principal", "principals", "owner"),
}
TEXT: Final = "detail"
TEXTS: Final = frozenset(
    {
        *(TEXT, "cause", "error", "evidence", "next_step", "note", "reason", "sentence"),
        *("damaged_partitions", "unknown", "values", "what"),
    }
)
"""Fields with texts for people, or what is in the gaps of such texts, which may name keys."""
_SETTING: Final = "topic.name"
"""The end of names of settings that name a topic."""
TOPICS_BY_NAME: Final = frozenset({"sent", "origin_unverified"})
"""Fields that count by topic: the topics are the names in them."""
CONTENTS: Final = frozenset({"key", "headers", "decoded", "properties", "attributes"})
_OF_TOPIC: Final = frozenset({"partitions", "deleted"})
"""A document with one of these and a name is about the topic of that name."""


def with_written_texts(value: Any) -> Any:
    """A JSON document for operators that has no contents of messages: all of its texts."""
    if isinstance(value, str):
        return with_written_keys(value)
    if isinstance(value, list | tuple):
        return [with_written_texts(item) for item in value]
    if isinstance(value, dict):
        return {with_written_texts(name): with_written_texts(item) for name, item in value.items()}
    return value


def with_written_names(value: Any, field: str = "", write: Callable[[str], str] = written) -> Any:
    """A JSON document for operators. `field`: where it is in another one; `write`: how they write a
    key that need not be a topic's."""
    if isinstance(value, str):
        if field in _TOPICS or field.endswith(_SETTING):
            return written_topic(value)
        if field in TEXTS:
            return with_written_keys(value)
        return write(value) if field in _NAMES else value
    if isinstance(value, list | tuple):
        return [with_written_names(item, field, write) for item in value]
    if not isinstance(value, dict):
        return value
    if field in TOPICS_BY_NAME:
        return {written_topic(topic): count for topic, count in value.items()}
    if field in TEXTS:
        return {part: with_written_names(item, TEXT) for part, item in value.items()}
    name = value.get("name")
    is_setting = isinstance(name, str) and name.endswith(_SETTING)
    is_named = field == "topics" or value.keys() & _OF_TOPIC
    of_name = "topic" if is_named else "group" if "resource" in value else "name"
    of_value = _SETTING if is_setting else "value"
    fields: dict[str, str] = {"name": of_name, "value": of_value, "default": of_value}
    return {
        part: item
        if part in CONTENTS or (part == "value" and not is_setting)
        else with_written_names(item, fields.get(part) or part, write)
        for part, item in value.items()
    }
