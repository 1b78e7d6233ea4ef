"""Environment variables of options: `--data-dir` is HEADRACE_DATA_DIR.

Invariants: every visible option of `serve` has one, named after the option, and the help page shows
it. An unknown variable with our prefix is reported, because it has no effect.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "HEADRACE_"
OTHERS = (
    "BOOKIE_CREDENTIAL",
    "BOOTSTRAP",
    "CACHE",
    "COMPILED",
    "CONTEXT",
    "MAVEN",
    "PASSWORD",
    "TRACEBACK",
    "ZOOKEEPER_CREDENTIAL",
)
"""Variables that belong to no option of `serve`."""
_NEAR = 0.8
_OF_ONE_CALL = {"json"}


def name_variables(command: click.Command) -> None:
    """Give each visible option of the command its variable, and show all of them in its help."""
    for param in command.params:
        if not isinstance(param, click.Option) or param.hidden:
            continue
        name = param.opts[0].removeprefix("--")
        if param.envvar is None and name not in _OF_ONE_CALL:
            param.envvar = PREFIX + name.replace("-", "_").upper()
        param.show_envvar = param.envvar is not None


def misspelt(command: click.Command, names: Iterable[str]) -> Mapping[str, str]:
    """Find variable names that are similar to one of the command's; returns pairs with that one."""
    known = {PREFIX + name for name in OTHERS}
    known |= {
        param.envvar for param in command.params if isinstance(param.envvar, str) and param.envvar
    }
    found: dict[str, str] = {}
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1, _NEAR)
            if near:
                found[name] = near[0]
    return found
