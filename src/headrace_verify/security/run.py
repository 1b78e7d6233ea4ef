"""A run as in `verify wire`, with this table, canaries in the environment, and debug logging.

Invariants: cases have a fixed length; the checks after each are those of `verify wire`.
"""

from __future__ import annotations

from headrace_verify.security.secrets import CANARIES
from headrace_verify.security.table import CASES
from headrace_verify.wire.run import Plan

QUICK_S, LONG_S = 4.0, 60.0


def plan(seconds: float, seed: int, only: tuple[str, ...] = (), bug: str = "") -> Plan:
    """The options of a run."""
    return Plan(seconds, seed, only, bug, "security", CASES, CANARIES, "debug")
