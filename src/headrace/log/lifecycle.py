"""The state machine of a partition's log.

Invariants: pure; knows no ledgers or bytes. `on` takes an event and returns the effects; the host
(`lifecycle_host`) performs them in order and reports how each step ended as another event. An event
that a state does not list has no effect: a step begun before the log was handed over or failed may
end late.

Three things run beside the state, and change by the same table: the next ledger, which is created
while appends continue (`NextLedger`); whether readers see the log as loaded (PUBLISH, UNPUBLISH);
and why requests are refused (`failure`). A suspension is such a failure: while it lasts, the state
follows the steps in progress, but no transition releases appends.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.errors import NotOwner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.errors import HeadraceError


class Suspended(NotOwner):
    """It is uncertain whether this broker still owns the partition."""


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
    DELETION_BEGUN = "topic deletion begun"
    DELETED = "topic deleted"
    SUSPENDED = "ownership uncertain"
    REINSTATED = "ownership certain again"


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
    # --- suspension: steps in progress continue, and storage rejects those of a former owner
    **{
        (state, Event.SUSPENDED): (state, (Effect.HOLD_APPENDS, Effect.FAIL_WAITERS))
        for state in (*_ANY, State.DRAINING)
    },
    # In other states, appends wait for a step.
    **{
        (state, Event.REINSTATED): (
            state,
            (Effect.RELEASE_APPENDS,) if state in {State.OPEN, State.EMPTY} else (),
        )
        for state in _ANY
    },
    # --- the end
    **{(state, Event.DELETION_BEGUN): (state, ()) for state in State},
    (State.DRAINING, Event.DRAIN): (State.DRAINING, ()),
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


_REASONS: Final = {Event.DAMAGED, Event.CHAIN_LOST, Event.ABANDONED, Event.SUSPENDED}
"""Events that say why requests are refused from now on."""
_FIRST_REASONS: Final = {Event.DRAIN, Event.DELETED}
"""Those that say it unless an earlier one has."""


class Lifecycle:
    """The lifecycle of one log."""

    __slots__ = ("failure", "is_deleted", "is_loaded", "next_ledger", "state")

    def __init__(self) -> None:
        self.state = State.UNLOADED
        self.next_ledger = NextLedger.NONE
        self.is_loaded = False
        """Whether readers see the log as loaded."""
        self.is_deleted = False
        """Whether the topic is being deleted; the ledgers may still exist."""
        self.failure: HeadraceError | None = None
        """Why requests are refused; None if they are not."""

    @property
    def is_suspended(self) -> bool:
        """Whether requests are refused until the ownership is certain again."""
        return isinstance(self.failure, Suspended)

    @property
    def can_load(self) -> bool:
        """Whether a load would begin, and what it loads be served."""
        return self.state is State.UNLOADED and self.failure is None and not self.is_deleted

    @property
    def accepts_appends(self) -> bool:
        """Whether appends may be released."""
        return self.failure is None and self.state in {State.OPEN, State.EMPTY}

    def on(self, event: Event, error: HeadraceError | None = None) -> tuple[Effect, ...]:
        """Process an event; returns the effects for the host to perform in order.

        `error`: why requests are refused, for an event that ends or suspends the service.
        """
        found = TRANSITIONS.get((self.state, event))
        if found is None:
            return ()
        if event is Event.SUSPENDED and self.failure is not None:
            return ()  # they are refused already
        if event is Event.REINSTATED:
            if not self.is_suspended:
                return ()
            self.failure = None
        self.state, effects = found
        if event in _REASONS:
            self.failure = error
        elif event in _FIRST_REASONS:
            self.failure = self.failure or error
        elif event is Event.DELETION_BEGUN:
            self.is_deleted = True
        if Effect.PUBLISH in effects:
            self.is_loaded = True
        elif Effect.UNPUBLISH in effects:
            self.is_loaded = False
        if self.failure is not None:
            effects = tuple(one for one in effects if one is not Effect.RELEASE_APPENDS)
        return effects
