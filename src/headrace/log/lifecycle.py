"""The state machine of a partition's log.

Invariants: pure; knows no ledgers or bytes. `on` takes an event and returns the effects; the host
(`lifecycle_host`) performs them in order and reports how each step ended as another event. An event
that a state does not list has no effect: a step begun before the log was handed over or failed may
end late.

The next ledger is created while appends continue, so it has a state of its own (`NextLedger`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """The state of a log; docs/ARCHITECTURE.md has the diagram."""

    WAITING = "waiting"
    """Another broker owns the partition and is about to hand it over."""
    UNLOADED = "unloaded"
    LOADING = "loading"
    EMPTY = "empty"
    """Loaded. No ledger is open; the first append requests one."""
    OPENING = "opening"
    """Loaded. The ledger for the first append is being created."""
    OPEN = "open"
    """Appends are accepted."""
    HELD = "held"
    """The ledger is overfull and the next one does not exist yet: appends wait."""
    ROLLING = "rolling"
    """The next ledger exists: appends wait until pending ones are durable."""
    RESUMING = "resuming"
    """An append failed: the ledger is recovered to find its end."""
    IN_DOUBT = "in doubt"
    """The recovery failed; the next append retries it."""
    DRAINING = "draining"
    """The partition is being handed over: appends wait until they are sent to the next owner."""
    FAILED = "failed"
    """Corrupt, or owned by another broker. Final, except for deletion."""
    DELETED = "deleted"


class Event(Enum):
    """An event in the life of a log."""

    HANDOVER_EXPECTED = "handover expected"
    OWNERSHIP_TAKEN = "ownership taken"
    READ_REQUESTED = "read requested"
    APPEND_REQUESTED = "append requested"
    LOADED_OPEN = "loaded with an open ledger"
    LOADED_EMPTY = "loaded without an open ledger"
    LOAD_FAILED = "load failed"
    LEDGER_CREATED = "ledger created"
    LEDGER_FAILED = "ledger creation failed"
    OVERFULL = "ledger overfull"
    NEXT_CREATED = "next ledger created"
    NEXT_FAILED = "next ledger creation failed"
    FULL = "ledger full, next one exists"
    NONE_PENDING = "no append pending"
    APPEND_FAILED = "append failed"
    RECOVERED = "ledger recovered"
    RESUME_FAILED = "ledger recovery failed"
    STEP_FAILED = "background step failed"
    DRAIN = "drain requested"
    DRAINED = "drained"
    DAMAGED = "corrupt, or owner changed"
    CHAIN_LOST = "chain missing"
    ABANDONED = "abandoned"
    DELETED = "topic deleted"


class Effect(Enum):
    """An action of the host."""

    BEGIN_LOAD = "load"
    CREATE_LEDGER = "create ledger"
    BEGIN_RESUME = "resume"
    SWITCH = "switch"
    """Switch from the full ledger to the next one, and seal it."""
    HOLD_APPENDS = "hold appends"
    """Appends wait from now on."""
    RELEASE_APPENDS = "release appends"
    """Appends are accepted again."""
    FAIL_WAITERS = "fail waiters"
    """Waiting appends get the error; later ones wait again."""
    PUBLISH = "publish"
    """Readers see the log as loaded."""
    UNPUBLISH = "unpublish"
    """Readers see the log as not loaded."""


_ANY: Final = (
    State.WAITING,
    State.UNLOADED,
    State.LOADING,
    State.EMPTY,
    State.OPENING,
    State.OPEN,
    State.HELD,
    State.ROLLING,
    State.RESUMING,
    State.IN_DOUBT,
)
"""All states except DRAINING, FAILED and DELETED."""
_Step = tuple[State, tuple[Effect, ...]]


def _from(states: tuple[State, ...], event: Event, step: _Step) -> dict[tuple[State, Event], _Step]:
    return {(state, event): step for state in states}


_RESUME: Final[_Step] = State.RESUMING, (Effect.HOLD_APPENDS, Effect.BEGIN_RESUME)
_FAIL: Final[_Step] = State.FAILED, (Effect.HOLD_APPENDS, Effect.FAIL_WAITERS)
_END: Final[_Step] = State.FAILED, (Effect.UNPUBLISH, Effect.HOLD_APPENDS, Effect.FAIL_WAITERS)

TRANSITIONS: Final[Mapping[tuple[State, Event], _Step]] = {
    (State.UNLOADED, Event.HANDOVER_EXPECTED): (State.WAITING, ()),
    (State.WAITING, Event.OWNERSHIP_TAKEN): (State.LOADING, (Effect.BEGIN_LOAD,)),
    # --- loading
    (State.UNLOADED, Event.READ_REQUESTED): (State.LOADING, (Effect.BEGIN_LOAD,)),
    (State.UNLOADED, Event.APPEND_REQUESTED): (State.LOADING, (Effect.BEGIN_LOAD,)),
    (State.LOADING, Event.LOADED_OPEN): (State.OPEN, (Effect.PUBLISH, Effect.RELEASE_APPENDS)),
    (State.LOADING, Event.LOADED_EMPTY): (State.EMPTY, (Effect.PUBLISH, Effect.RELEASE_APPENDS)),
    (State.LOADING, Event.LOAD_FAILED): (State.UNLOADED, (Effect.FAIL_WAITERS,)),
    # --- the first ledger
    (State.EMPTY, Event.APPEND_REQUESTED): (
        State.OPENING,
        (Effect.HOLD_APPENDS, Effect.CREATE_LEDGER),
    ),
    (State.OPENING, Event.LEDGER_CREATED): (State.OPEN, (Effect.RELEASE_APPENDS,)),
    (State.OPENING, Event.LEDGER_FAILED): (State.EMPTY, (Effect.FAIL_WAITERS,)),
    # --- rolling
    (State.OPEN, Event.OVERFULL): (State.HELD, (Effect.HOLD_APPENDS,)),
    (State.HELD, Event.NEXT_CREATED): (State.ROLLING, ()),
    (State.HELD, Event.NEXT_FAILED): (
        State.OPEN,
        (Effect.RELEASE_APPENDS,),
    ),  # continue in the old one
    (State.OPEN, Event.FULL): (State.ROLLING, (Effect.HOLD_APPENDS,)),
    (State.ROLLING, Event.NONE_PENDING): (State.OPEN, (Effect.SWITCH, Effect.RELEASE_APPENDS)),
    # --- recovery from a failed append
    **_from((State.OPEN, State.HELD, State.ROLLING), Event.APPEND_FAILED, _RESUME),
    (State.RESUMING, Event.RECOVERED): (State.OPEN, (Effect.RELEASE_APPENDS,)),
    (State.RESUMING, Event.LOADED_OPEN): (State.OPEN, (Effect.PUBLISH, Effect.RELEASE_APPENDS)),
    (State.RESUMING, Event.LOADED_EMPTY): (State.EMPTY, (Effect.PUBLISH, Effect.RELEASE_APPENDS)),
    (State.RESUMING, Event.RESUME_FAILED): (State.IN_DOUBT, (Effect.FAIL_WAITERS,)),
    (State.IN_DOUBT, Event.APPEND_REQUESTED): _RESUME,
    # --- other steps: a seal, the next ledger
    **{(state, Event.STEP_FAILED): (state, (Effect.FAIL_WAITERS,)) for state in State},
    # --- the end
    **_from(_ANY, Event.DRAIN, (State.DRAINING, (Effect.HOLD_APPENDS,))),
    (State.DRAINING, Event.DRAINED): (State.DRAINING, (Effect.UNPUBLISH,)),
    (State.DRAINING, Event.APPEND_FAILED): (State.DRAINING, (Effect.BEGIN_RESUME,)),
    (State.DRAINING, Event.LOAD_FAILED): (State.DRAINING, (Effect.FAIL_WAITERS,)),
    (State.DRAINING, Event.LEDGER_FAILED): (State.DRAINING, (Effect.FAIL_WAITERS,)),
    (State.DRAINING, Event.RESUME_FAILED): (State.DRAINING, (Effect.FAIL_WAITERS,)),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.DAMAGED, _FAIL),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.CHAIN_LOST, _END),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.ABANDONED, _END),
    **_from(
        (*_ANY, State.DRAINING, State.FAILED),
        Event.DELETED,
        (State.DELETED, (Effect.HOLD_APPENDS,)),
    ),
}


class NextLedger(Enum):
    """The state of the ledger after the current one."""

    NONE = "none"
    CREATING = "being created"
    CREATED = "created"


class Lifecycle:
    """The lifecycle of one log."""

    __slots__ = ("next_ledger", "state")

    def __init__(self) -> None:
        self.state = State.UNLOADED
        self.next_ledger = NextLedger.NONE

    def on(self, event: Event) -> tuple[Effect, ...]:
        """Process an event; returns the effects for the host to perform in order."""
        self.state, effects = TRANSITIONS.get((self.state, event), (self.state, ()))
        return effects
