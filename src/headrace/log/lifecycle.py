"""The states of one partition's log, and what leads from one to the next.

Invariants: pure; knows no ledgers and no bytes. `on` takes an event and returns what is to be done
about it; the host (`upkeep`) does that, in this order, and reports how each step ended as another
event. An event that a state does not list changes nothing: a step that was begun before the log was
handed over or failed ends late, and does nothing more.

The next ledger is created while appends go on, so it is followed apart (`NextLedger`).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """Of a log; docs/ARCHITECTURE.md draws them."""

    WAITING = "waiting"
    """Another broker owns the partition and is about to hand it over."""
    UNLOADED = "unloaded"
    LOADING = "loading"
    EMPTY = "empty"
    """Loaded. No ledger takes appends; the first append asks for one."""
    OPENING = "opening"
    """Loaded. The ledger for the first append is being created."""
    OPEN = "open"
    """Appends go ahead."""
    HELD = "held"
    """The ledger is more than full, and the next one is not there yet: appends wait."""
    ROLLING = "rolling"
    """The next ledger is there: appends wait until those under way are safe."""
    RESUMING = "resuming"
    """An append failed: storage is asked where the ledger ends."""
    IN_DOUBT = "in doubt"
    """Storage did not say; the next append asks again."""
    DRAINING = "draining"
    """The partition is handed over: appends wait until they are sent to its next owner."""
    FAILED = "failed"
    """Damaged, or another broker's. Nothing leads out of it."""
    DELETED = "deleted"


class Event(Enum):
    """What happens to a log."""

    TURN_AWAITED = "another broker is to hand it over"
    TURN_BEGAN = "this broker owns it"
    READ_WANTED = "a client reads"
    APPEND_WANTED = "a client appends"
    LOADED_OPEN = "loaded, its ledger takes appends"
    LOADED_EMPTY = "loaded, no ledger takes appends"
    LOAD_FAILED = "loading failed"
    LEDGER_CREATED = "the ledger is created"
    LEDGER_FAILED = "no ledger can be created"
    OVERFULL = "the ledger is more than full"
    NEXT_CREATED = "the next ledger is created"
    NEXT_FAILED = "no next ledger can be created"
    FULL = "the ledger is full, the next one is there"
    SETTLED = "nothing is under way"
    APPEND_FAILED = "an append failed"
    RECOVERED = "the ledger's end is known"
    RESUME_FAILED = "the ledger's end cannot be found out"
    STEP_FAILED = "a seal failed"
    DRAIN = "it is handed over"
    DRAINED = "its ledger is sealed"
    DAMAGED = "damage is found, or another owner"
    CHAIN_LOST = "its chain is missing"
    ABANDONED = "it is not served here any more"
    DELETED = "its topic is deleted"


class Effect(Enum):
    """What the host does."""

    BEGIN_LOAD = "load"
    CREATE_LEDGER = "create ledger"
    BEGIN_RESUME = "resume"
    SWITCH = "switch"
    """Leave the full ledger for the next one, and seal it."""
    SHUT = "shut"
    """Appends wait from now on."""
    LET_GO = "let go"
    """Appends go ahead."""
    TELL = "tell"
    """Those who wait get the error; who comes later waits anew."""
    SHOW = "show"
    """Readers find the log loaded."""
    HIDE = "hide"
    """Readers find it not loaded."""


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
"""All but the last ones, DRAINING, FAILED and DELETED."""
_Step = tuple[State, tuple[Effect, ...]]


def _from(states: tuple[State, ...], event: Event, step: _Step) -> dict[tuple[State, Event], _Step]:
    return {(state, event): step for state in states}


_RESUME: Final[_Step] = State.RESUMING, (Effect.SHUT, Effect.BEGIN_RESUME)
_FAIL: Final[_Step] = State.FAILED, (Effect.SHUT, Effect.TELL)
_END: Final[_Step] = State.FAILED, (Effect.HIDE, Effect.SHUT, Effect.TELL)

TRANSITIONS: Final[Mapping[tuple[State, Event], _Step]] = {
    (State.UNLOADED, Event.TURN_AWAITED): (State.WAITING, ()),
    (State.WAITING, Event.TURN_BEGAN): (State.LOADING, (Effect.BEGIN_LOAD,)),
    # --- loading
    (State.UNLOADED, Event.READ_WANTED): (State.LOADING, (Effect.BEGIN_LOAD,)),
    (State.UNLOADED, Event.APPEND_WANTED): (State.LOADING, (Effect.BEGIN_LOAD,)),
    (State.LOADING, Event.LOADED_OPEN): (State.OPEN, (Effect.SHOW, Effect.LET_GO)),
    (State.LOADING, Event.LOADED_EMPTY): (State.EMPTY, (Effect.SHOW, Effect.LET_GO)),
    (State.LOADING, Event.LOAD_FAILED): (State.UNLOADED, (Effect.TELL,)),
    # --- the first ledger
    (State.EMPTY, Event.APPEND_WANTED): (State.OPENING, (Effect.SHUT, Effect.CREATE_LEDGER)),
    (State.OPENING, Event.LEDGER_CREATED): (State.OPEN, (Effect.LET_GO,)),
    (State.OPENING, Event.LEDGER_FAILED): (State.EMPTY, (Effect.TELL,)),
    # --- rolling
    (State.OPEN, Event.OVERFULL): (State.HELD, (Effect.SHUT,)),
    (State.HELD, Event.NEXT_CREATED): (State.ROLLING, ()),
    (State.HELD, Event.NEXT_FAILED): (State.OPEN, (Effect.LET_GO,)),  # the old one has to do
    (State.OPEN, Event.FULL): (State.ROLLING, (Effect.SHUT,)),
    (State.ROLLING, Event.SETTLED): (State.OPEN, (Effect.SWITCH, Effect.LET_GO)),
    # --- going on after a failure
    **_from((State.OPEN, State.HELD, State.ROLLING), Event.APPEND_FAILED, _RESUME),
    (State.RESUMING, Event.RECOVERED): (State.OPEN, (Effect.LET_GO,)),
    (State.RESUMING, Event.LOADED_OPEN): (State.OPEN, (Effect.SHOW, Effect.LET_GO)),
    (State.RESUMING, Event.LOADED_EMPTY): (State.EMPTY, (Effect.SHOW, Effect.LET_GO)),
    (State.RESUMING, Event.RESUME_FAILED): (State.IN_DOUBT, (Effect.TELL,)),
    (State.IN_DOUBT, Event.APPEND_WANTED): _RESUME,
    # --- others' steps: a seal, the next ledger
    **{(state, Event.STEP_FAILED): (state, (Effect.TELL,)) for state in State},
    # --- the end
    **_from(_ANY, Event.DRAIN, (State.DRAINING, (Effect.SHUT,))),
    (State.DRAINING, Event.DRAINED): (State.DRAINING, (Effect.HIDE,)),
    (State.DRAINING, Event.APPEND_FAILED): (State.DRAINING, (Effect.BEGIN_RESUME,)),
    (State.DRAINING, Event.LOAD_FAILED): (State.DRAINING, (Effect.TELL,)),
    (State.DRAINING, Event.LEDGER_FAILED): (State.DRAINING, (Effect.TELL,)),
    (State.DRAINING, Event.RESUME_FAILED): (State.DRAINING, (Effect.TELL,)),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.DAMAGED, _FAIL),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.CHAIN_LOST, _END),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.ABANDONED, _END),
    **_from((*_ANY, State.DRAINING, State.FAILED), Event.DELETED, (State.DELETED, (Effect.SHUT,))),
}


class NextLedger(Enum):
    """The ledger after the one that is written to."""

    NONE = "none"
    CREATING = "being created"
    CREATED = "created"


class Lifecycle:
    """The state of one log."""

    __slots__ = ("next_ledger", "state")

    def __init__(self) -> None:
        self.state = State.UNLOADED
        self.next_ledger = NextLedger.NONE

    def on(self, event: Event) -> tuple[Effect, ...]:
        """Take an event; what the host has to do, in this order."""
        self.state, effects = TRANSITIONS.get((self.state, event), (self.state, ()))
        return effects
