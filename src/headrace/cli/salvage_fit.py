"""Which settings a topic needs to keep the records of a damaged one.

Invariants: pure. Salvaged records keep their timestamps and headers, so that retention by time
deletes them when they arrive, and queue attributes would take effect a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.topics.topic_config import (
    ATTRIBUTE_TYPES,
    ATTRIBUTES,
    AUTO,
    DEFINITIONS,
    MESSAGE_TYPE,
    VALIDATION,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_IGNORING: Final = {"ignore", "false"}
_RETENTION: Final = ("retention.ms", "retention.bytes")
_FOREVER: Final = "-1"
_AT_LEAST: Final = ("max.message.bytes", "message.timestamp.after.max.ms")
_CREATE_TIME: Final = "CreateTime"


def misfits(source: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    """The settings that the target must change, and to what.

    `source`: the damaged topic's own settings. What it lacks came from its broker's settings, which
    may be longer than the default: its retention counts as unlimited. `target`: all settings in
    effect; a broker of another kind may lack some.
    """
    wrong: dict[str, str] = {}

    def expect(name: str, value: str, *, fits: bool) -> None:
        if name in target and not fits:
            wrong[name] = value

    policy = source.get("cleanup.policy", DEFINITIONS["cleanup.policy"].default)
    expect(
        "cleanup.policy",
        policy,
        fits=_policies(policy) == _policies(target.get("cleanup.policy", "")),
    )
    if "delete" in _policies(policy):
        for name in _RETENTION:
            value = source.get(name, _FOREVER)
            kept = target.get(name, _FOREVER)
            fits = kept == _FOREVER or (value != _FOREVER and int(kept) >= int(value))
            expect(name, value, fits=fits)
    for name in _AT_LEAST:
        value = source.get(name, DEFINITIONS[name].default)
        expect(name, value, fits=int(target.get(name, value)) >= int(value))
    # Records are older than when they were written.
    name = "message.timestamp.before.max.ms"
    longest = DEFINITIONS[name].default
    expect(name, longest, fits=target.get(name) == longest)
    name = "message.timestamp.type"
    expect(name, _CREATE_TIME, fits=target.get(name) == _CREATE_TIME)
    if _may_have_attributes(source):
        expect(ATTRIBUTES, "ignore", fits=target.get(ATTRIBUTES) in _IGNORING)
        expect(MESSAGE_TYPE, AUTO, fits=target.get(MESSAGE_TYPE) not in ATTRIBUTE_TYPES)
    return wrong


def _policies(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


def _may_have_attributes(source: Mapping[str, str]) -> bool:
    """Whether the topic stored records with queue attributes, by its settings."""
    return (
        source.get(ATTRIBUTES, "refuse") != "refuse"
        or source.get(MESSAGE_TYPE, AUTO) in ATTRIBUTE_TYPES
        or source.get(VALIDATION, "full") != "full"
    )
