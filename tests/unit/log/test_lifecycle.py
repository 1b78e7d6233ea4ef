"""The table of a log's lifecycle: what it promises, and what the documents show of it."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, NotOwner
from headrace.log.lifecycle import TRANSITIONS, Effect, Event, Lifecycle, State, Suspended

PAGE = Path(__file__).parents[3] / "docs" / "ARCHITECTURE.md"
BEGIN, END = "<!-- lifecycle: begin -->\n", "<!-- lifecycle: end -->\n"
FINAL = (State.DRAINING, State.FAILED, State.DELETED)


def drawn() -> str:
    """The table as a Mermaid diagram; what leads to an end from anywhere is drawn once."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {name(State.UNLOADED)}"]
    ends: dict[tuple[Event, State], None] = {}
    for (state, event), (following, _) in TRANSITIONS.items():
        if following in FINAL and following is not state:
            ends[event, following] = None
        elif following is not state:
            lines.append(f"    {name(state)} --> {name(following)}: {event.value}")
    lines += [f"    any --> {name(following)}: {event.value}" for event, following in ends]
    return "\n".join([*lines, "```", ""])


def name(state: State) -> str:
    return state.value.replace(" ", "_")


def test_the_documents_show_the_table() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        PAGE.write_text(before + BEGIN + drawn() + END + after)
    else:
        assert shown == drawn(), "rewrite it with HEADRACE_GOLDEN=write"


def test_every_state_can_be_reached() -> None:
    reached, left = {State.UNLOADED}, [State.UNLOADED]
    while left:
        state = left.pop()
        for event in Event:
            following = TRANSITIONS.get((state, event), (state, ()))[0]
            if following not in reached:
                reached.add(following)
                left.append(following)
    assert reached == set(State)


@pytest.mark.parametrize("state", FINAL)
def test_a_log_in_a_final_state_never_admits_appends_or_readers_again(state: State) -> None:
    for event in Event:
        following, effects = TRANSITIONS.get((state, event), (state, ()))
        assert following in FINAL
        forbidden = {Effect.RELEASE_APPENDS, Effect.PUBLISH, Effect.SWITCH, Effect.BEGIN_LOAD}
        assert not forbidden & {*effects}


def test_appends_go_ahead_in_two_states_alone() -> None:
    passing = {State.OPEN, State.EMPTY}
    for (state, event), (following, effects) in TRANSITIONS.items():
        if following is state:
            continue
        if following in passing:
            is_released = effects[-1] is Effect.RELEASE_APPENDS
            assert is_released or Effect.FAIL_WAITERS in effects, (state, event)
        elif state in passing:
            assert Effect.HOLD_APPENDS in effects, (state, event)


def test_an_event_that_a_state_does_not_list_changes_nothing() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.on(Event.NONE_PENDING) == ()
    assert lifecycle.state is State.UNLOADED


def test_a_suspended_log_takes_no_appends_until_it_is_reinstated() -> None:
    lifecycle = Lifecycle()
    lifecycle.on(Event.READ_REQUESTED)
    assert Effect.HOLD_APPENDS in lifecycle.on(Event.SUSPENDED, Suspended("uncertain"))
    assert lifecycle.on(Event.LOADED_OPEN) == (Effect.PUBLISH,)
    assert lifecycle.state is State.OPEN
    assert not lifecycle.accepts_appends
    assert lifecycle.on(Event.REINSTATED) == (Effect.RELEASE_APPENDS,)
    assert lifecycle.accepts_appends
    assert lifecycle.on(Event.REINSTATED) == ()


@pytest.mark.parametrize("end", [Event.ABANDONED, Event.DAMAGED, Event.CHAIN_LOST, Event.DRAIN])
def test_a_suspended_log_that_ends_is_not_reinstated(end: Event) -> None:
    lifecycle = Lifecycle()
    lifecycle.on(Event.SUSPENDED, Suspended("uncertain"))
    lifecycle.on(end, NotOwner("moved"))
    assert lifecycle.on(Event.REINSTATED) == ()
    assert lifecycle.failure is not None


def test_appends_are_accepted_only_where_the_table_released_them() -> None:
    """All that can happen in three events, with what the host makes of the effects."""

    def play(events: tuple[Event, ...]) -> None:
        lifecycle, is_held = Lifecycle(), True
        for event in events:
            error: HeadraceError = (Suspended if event is Event.SUSPENDED else NotOwner)("why")
            for effect in lifecycle.on(event, error):
                if effect in {Effect.HOLD_APPENDS, Effect.FAIL_WAITERS}:
                    is_held = is_held or effect is Effect.HOLD_APPENDS
                elif effect is Effect.RELEASE_APPENDS:
                    is_held = False
            assert is_held or lifecycle.accepts_appends, events
            assert lifecycle.state not in {State.FAILED, State.DELETED} or lifecycle.failure

    begun = (Event.READ_REQUESTED, Event.LOADED_OPEN)
    for events in product(Event, repeat=3):
        play((*begun, *events))
