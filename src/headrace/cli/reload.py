"""SIGHUP: reloads the configuration file, and applies what can change at run time.

Invariants: never ends the process, whatever the file contains. The command line and the environment
take precedence over the file, as at the start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from click.core import ParameterSource

from headrace.cli.cluster_options import CLUSTER_NAMES
from headrace.cli.config_file import SERVE_TABLE, file_of, read_file
from headrace.cli.failures import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import click

log = logging.getLogger("headrace")

LOG_LEVEL = "log_level"


class Reload:
    """The SIGHUP handler of `headrace serve`."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self._path = file_of(ctx)
        self._found: Mapping[str, Any] = dict(ctx.default_map or {})
        self._then: list[Callable[[], None]] = []

    def then(self, reload: Callable[[], None]) -> None:
        """Call `reload`, too: for what is read from other files."""
        self._then.append(reload)

    def __call__(self) -> None:
        """Reload the file."""
        for reload in self._then:
            reload()
        if self._path is None:
            log.info("SIGHUP: no configuration file (--config) to reload")
            return
        try:
            found = read_file(self._path, self._ctx, SERVE_TABLE, CLUSTER_NAMES)
        except CommandFailed as error:
            log.error("SIGHUP: %s; no settings were changed", error.message)  # noqa: TRY400 - it says where
            return
        names = {*found, *self._found}
        changed = {name for name in names if found.get(name) != self._found.get(name)}
        changed = {name for name in changed if self._counts(name)}
        self._found = found
        log.info("SIGHUP: reloaded %s: %s", self._path, self._apply(changed))

    def _counts(self, name: str) -> bool:
        """Whether the file decides, rather than the command line or the environment."""
        source = self._ctx.get_parameter_source(name)
        return source not in {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}

    def _apply(self, changed: set[str]) -> str:
        """Apply what can be applied; returns a description."""
        changes = []
        if LOG_LEVEL in changed:
            level = str(self._found.get(LOG_LEVEL, "info"))
            logging.getLogger().setLevel(level.upper())
            changes.append(f"log-level is now {level}")
        later = ", ".join(sorted(name.replace("_", "-") for name in changed - {LOG_LEVEL}))
        if later:
            changes.append(f"{later} will change at the next start")
        return "; ".join(changes) or "no changes"
