"""Puts the compiled core into a wheel: a hatchling build hook, off unless it is asked for.

`HATCH_BUILD_HOOKS_ENABLE=1 python -m build --wheel` makes a wheel for this Python and platform that
holds the core in a folder beside the package, where `headrace.runtime.compiled` looks for it. Its
sources are in the wheel, too: they take over wherever somebody edits one of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE = "headrace_core"


class WheelCore(BuildHookInterface[Any]):
    """See the module."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What compiles the core; as pinned as the project's other tools."""
        return ["mypy>=1.15", "setuptools>=75"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the platform. Raises CalledProcessError: no wheel without its core."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp(prefix="headrace-wheel-")
        built = Path(self._folder) / CORE
        command = [sys.executable, str(Path(self.root, "scripts", "build_core.py"))]
        subprocess.run([*command, "--must", "--into", str(built)], check=True)  # noqa: S603
        build_data["pure_python"] = False
        build_data["tag"] = _tag()
        build_data["force_include"][str(built)] = CORE

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact: str) -> None:
        """Remove what was compiled."""
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


def _tag() -> str:
    """`cp311-cp311-linux_x86_64`: the core is compiled for one version of CPython."""
    name = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{name}-{name}-{platform}"
