"""Gives a distribution of packages/ the version of the broker: a hatchling metadata hook.

The version stands in the broker's pyproject.toml alone. The other distributions take it from there
for themselves and for what they require of the broker. Their source distributions hold the result
(PKG-INFO): hatchling takes it from there and does not ask this hook again.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VERSION = "{version}"


class OneVersion(MetadataHookInterface):
    """See the module."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the version, and the dependencies with it in place of `{version}`."""
        broker = Path(self.root, "..", "..", "pyproject.toml").read_text("utf-8")
        version = tomllib.loads(broker)["project"]["version"]
        metadata["version"] = version
        metadata["dependencies"] = [
            one.replace(VERSION, version) for one in self.config["dependencies"]
        ]
