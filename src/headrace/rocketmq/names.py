"""RocketMQ's names of topics and groups, and ours.

Invariants: pure. A namespace is a prefix (`namespace.name`). RocketMQ's dead letter topic of a
group, `%DLQ%group`, is not a legal name of a topic in Kafka: it stands for the topic that the
group's settings name, which is `dlq.group` for groups that RocketMQ's clients create.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from headrace.records.identifiers import (
    LITE_TOPIC_LENGTH_MAX,
    TOPIC_NAME_SIZE_MAX,
    is_lite_topic,
    is_topic_name,
)
from headrace.records.tenant_names import name_in, sibling
from headrace.rocketmq import wire
from headrace.rocketmq.codes import (
    ILLEGAL_CONSUMER_GROUP,
    ILLEGAL_LITE_TOPIC,
    ILLEGAL_TOPIC,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.services.tenant_view import TenantView

DEAD_LETTERS: Final = "%DLQ%"
GROUP_LENGTH_MAX: Final = 255
SHOWN_MAX: Final = 100
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")
"""What RocketMQ's groups may contain and topics may not: `%` and `|`."""


def _with_namespace(resource: Any) -> str:
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}.{name}" if namespace else name


def resource_of(resource: Any) -> Any:
    """A copy for what outlives the request, of which a part would keep all, or repeats it:
    without unknown fields."""
    return wire.Resource(resource_namespace=resource.resource_namespace, name=resource.name)


def group_id_of(resource: Any, view: TenantView) -> str:
    """The group of a Resource, as its client's tenant stores it. Raises Refused."""
    name = _with_namespace(resource)
    if not resource.name.strip() or len(name) > GROUP_LENGTH_MAX or _CONTROL.search(name):
        raise Refused(
            ILLEGAL_CONSUMER_GROUP,
            f"{name[:SHOWN_MAX]!r} is not a consumer group: use 1 to {GROUP_LENGTH_MAX} characters,"
            " without control characters",
        )
    return view.key(name)


def topic_name_of(resource: Any, view: TenantView, dead_letter_topic: Callable[[str], str]) -> str:
    """The topic of a Resource, as its client's tenant stores it. Raises Refused.

    `dead_letter_topic(group_id)`: that of a group; empty if it has none.
    """
    name = _with_namespace(resource)
    if resource.name.startswith(DEAD_LETTERS):
        prefix = name.removesuffix(resource.name)
        group_id = view.key(prefix + resource.name.removeprefix(DEAD_LETTERS))
        name = view.name(dead_letter_topic(group_id) or default_dead_letter_topic(group_id))
    if not is_topic_name(name) or name.startswith("__"):
        raise Refused(
            ILLEGAL_TOPIC,
            f"{name[:SHOWN_MAX]!r} is not a topic for clients: use 1 to"
            f" {TOPIC_NAME_SIZE_MAX} letters, digits, '.', '_' and '-', not beginning with '__';"
            " %DLQ%group stands for the dead letter topic of a group",
        )
    return view.key(name)


def default_dead_letter_topic(group_id: str) -> str:
    """The dead letter topic of a group that a RocketMQ client creates; too long a name is cut."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f".{byte:02X}" for byte in found[0].encode())

    name = f"dlq.{_OTHER.sub(escaped, name_in(group_id))}"
    return sibling(group_id, name[:TOPIC_NAME_SIZE_MAX])


def lite_name(text: str) -> bytes:
    """The name of a lite topic. Raises Refused."""
    name = text.encode()
    if not is_lite_topic(name):
        raise Refused(
            ILLEGAL_LITE_TOPIC,
            f"{text[:LITE_TOPIC_LENGTH_MAX]!r} is not a lite topic: use 1 to"
            f" {LITE_TOPIC_LENGTH_MAX} letters, digits, '-' and '_'",
        )
    return name
