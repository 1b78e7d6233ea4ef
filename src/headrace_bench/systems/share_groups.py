"""Share groups of Kafka's protocol: their settings, and the program that empties a topic.

Invariants: the same program and settings for every system with this protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headrace_bench.systems.go_load import GoLoad, rate_of
from headrace_bench.tools import Tool

if TYPE_CHECKING:
    from headrace_bench.loads import Acknowledge

LOAD = GoLoad("share_load")


def configure(bootstrap: str, group: str, config: dict[str, str]) -> None:
    """Set a group's configuration."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def emptying(bootstrap: str, topic: str, acknowledge: Acknowledge) -> Tool:
    """The command that empties the topic from its beginning, in a separate process, until killed.

    Raises PartMissing if it cannot be built.
    """
    LOAD.build()
    group = f"{topic}-{acknowledge}"
    configure(bootstrap, group, {"share.auto.offset.reset": "earliest"})
    return Tool(LOAD.command(bootstrap, topic, group, acknowledge), rate_of)
