"""`headrace verify`: attacks this installation on this machine, and reports what was violated.

Invariants: a mode is a command of its own module; this module lists them.
"""

from __future__ import annotations

import click

from headrace.cli.parameters import CommandGroup
from headrace_verify.commands.blackbox import blackbox
from headrace_verify.commands.crash import crash
from headrace_verify.commands.fuzz import fuzz
from headrace_verify.commands.security import security
from headrace_verify.commands.simulate import simulate
from headrace_verify.commands.soak import soak
from headrace_verify.commands.upgrade import upgrade
from headrace_verify.commands.wire import wire


@click.group(cls=CommandGroup)
def verify() -> None:
    """Attack Headrace on this machine: every guarantee has a test that tries to break it."""


for _mode in (crash, blackbox, wire, simulate, soak, upgrade, security, fuzz):
    verify.add_command(_mode)
