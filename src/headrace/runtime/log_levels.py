"""Levels of parts of the program, which may change at run time.

Invariants: a logger that is no longer named gets the level of its parent again. Names are those of
the program's own packages, so that a setting cannot reach other libraries.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS: Final = ("debug", "info", "warning", "error")
_NAME: Final = re.compile(r"headrace(\.[a-z_]+){1,6}")
_NAMES_MAX: Final = 50


def parse_levels(text: str) -> dict[str, str]:
    """Levels by logger. Raises ValueError."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, level = item.partition("=")
        if not _NAME.fullmatch(name) or level not in LEVELS or name in found:
            raise ValueError(text)
        found[name] = level
    if len(found) > _NAMES_MAX:
        raise ValueError(text)
    return found


class LogLevels:
    """The levels that were set."""

    def __init__(self) -> None:
        self._set: set[str] = set()

    def apply(self, levels: Mapping[str, str]) -> None:
        """Set these, and no others any more."""
        for name in self._set - levels.keys():
            logging.getLogger(name).setLevel(logging.NOTSET)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level.upper())
        self._set = set(levels)
