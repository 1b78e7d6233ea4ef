"""A run as in `verify wire`, with this table, canaries in the environment, and debug logging.

Invariants: cases have a fixed length; the checks after each are those of `verify wire`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.security.secrets import CANARIES
from headrace_verify.security.table import CASES
from headrace_verify.wire.run import Outcome, Plan, run_wire

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK_S, LONG_S = 4.0, 60.0


def plan(seconds: float, seed: int, only: tuple[str, ...] = (), bug: str = "") -> Plan:
    """The options of a run."""
    return Plan(seconds, seed, only, bug, "security", CASES, CANARIES, "debug")


def run_security(wanted: Plan, on_progress: Callable[[float, str], None]) -> Outcome:
    """Attack a broker of our own. Raises Fatal if it does not start."""
    return run_wire(wanted, on_progress)
