"""The table of a log's lifecycle: what it promises, and what the documents show of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.log.lifecycle import TRANSITIONS, Effect, Event, Lifecycle, State

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
def test_what_has_ended_never_takes_appends_or_readers_again(state: State) -> None:
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
