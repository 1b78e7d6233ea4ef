"""Connection limits of single listeners, as the settings say.

Invariants: limits of the whole broker are read from its configuration, which may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.connection_limits import UNLIMITED, ListenerLimits
from headrace.broker.settings.table import SETTINGS
from headrace.metadata.endpoints import KAFKA

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.server.settings import Settings

_NAMES: Final = ("max.connections", "max.connection.creation.rate")


def limit_connections(node: Node, settings: Settings) -> None:
    """Give the node the limits of its listeners. Raises ConfigInvalid."""
    limits = node.services.connections
    for endpoint in settings.endpoints:
        values = [_value(settings, endpoint.listener, name) for name in _NAMES]
        limits.of_listeners[endpoint.listener] = ListenerLimits(*values)
    if len({one.listener for one in settings.endpoints if one.face == KAFKA}) > 1:
        limits.protected_listener = settings.inter_broker_listener


def _value(settings: Settings, listener: str, name: str) -> int:
    own = f"listener.name.{listener.lower()}.{name}"
    text = settings.given.get(own)
    return UNLIMITED if text is None else int(SETTINGS[name].parse(text, own))
