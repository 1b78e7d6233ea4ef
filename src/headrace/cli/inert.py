"""Refuses options that have no effect together with others.

Invariants: only options that the user has typed are refused, before anything is sent: defaults and
the environment say nothing about this command.
"""

from __future__ import annotations

import click
from click.core import ParameterSource


def refuse_inert(reason: str, *names: str) -> None:
    """Raise UsageError if one of these parameters of the current command was given.

    `reason`: as in "--rate has no effect with --dry-run".
    """
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if (
            param.name in names
            and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        ):
            shown = max(param.opts, key=len)
            raise click.UsageError(f"{shown} has no effect {reason}: omit it; nothing was done.")
