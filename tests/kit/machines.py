"""State machines with a journal: commands carried out as a host does, and reloads as after a crash.

Invariants: knows `Machine` alone, no protocol. `journal` holds what a host would have stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.coordination.kit.machine import Decision, KeyValue


def carry_out(machine: Any, command: Any, now_ms: int, journal: list[Any]) -> Decision[Any, Any]:
    """Decide, store and apply; what holds between commands is asserted."""
    decision: Decision[Any, Any] = machine.decide(command, now_ms)
    pairs = [machine.encode(record) for record in decision.records]
    journal += [pair for pair in pairs if pair is not None]
    for record in decision.records:
        machine.apply(record)
    machine.validate()
    return decision


def replay(machine: Any, journal: Iterable[KeyValue]) -> None:
    """Apply what is stored, all of which can be decoded."""
    for key, value in journal:
        record = machine.decode(key, value)
        assert record is not None
        machine.apply(record)
