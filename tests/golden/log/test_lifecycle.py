"""Transcripts of a log's lifecycle: what happens, where the log stands then, what is done.

Rewrite them with HEADRACE_GOLDEN=write after a change, and read the difference in review.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.log.lifecycle import Event, Lifecycle

FOLDER = Path(__file__).parent / "lifecycle"
LOADED = (Event.READ_REQUESTED, Event.LOADED_OPEN)
STORIES: dict[str, tuple[Event, ...]] = {
    "first-append": (
        *(Event.READ_REQUESTED, Event.APPEND_REQUESTED, Event.LOADED_EMPTY, Event.APPEND_REQUESTED),
        *(
            Event.LEDGER_FAILED,
            Event.APPEND_REQUESTED,
            Event.APPEND_REQUESTED,
            Event.LEDGER_CREATED,
        ),
    ),
    "load-that-fails": (
        *(Event.READ_REQUESTED, Event.LOAD_FAILED, Event.APPEND_REQUESTED, Event.LOADED_OPEN),
    ),
    "roll": (*LOADED, Event.NEXT_CREATED, Event.FULL, Event.FULL, Event.NONE_PENDING),
    "roll-that-waits-for-its-ledger": (
        *(*LOADED, Event.OVERFULL, Event.NEXT_FAILED),
        *(Event.OVERFULL, Event.APPEND_REQUESTED, Event.NEXT_CREATED, Event.NONE_PENDING),
    ),
    "append-that-fails": (
        *(*LOADED, Event.APPEND_FAILED, Event.APPEND_REQUESTED, Event.RESUME_FAILED),
        *(Event.READ_REQUESTED, Event.APPEND_REQUESTED, Event.RECOVERED),
    ),
    "append-that-fails-while-rolling": (
        *(*LOADED, Event.FULL, Event.APPEND_FAILED, Event.NONE_PENDING, Event.LOADED_EMPTY),
        *(Event.APPEND_REQUESTED, Event.LEDGER_CREATED),
    ),
    "planned-move-of-the-former-owner": (
        *(*LOADED, Event.DRAIN, Event.APPEND_REQUESTED, Event.APPEND_FAILED, Event.RECOVERED),
        *(Event.DRAINED, Event.ABANDONED, Event.APPEND_REQUESTED),
    ),
    "planned-move-of-the-next-owner": (
        *(
            Event.HANDOVER_EXPECTED,
            Event.READ_REQUESTED,
            Event.APPEND_REQUESTED,
            Event.OWNERSHIP_TAKEN,
        ),
        Event.LOADED_OPEN,
    ),
    "planned-move-that-is-called-off": (
        *(Event.HANDOVER_EXPECTED, Event.APPEND_REQUESTED, Event.ABANDONED, Event.OWNERSHIP_TAKEN),
    ),
    "hand-over-while-loading": (
        *(Event.READ_REQUESTED, Event.DRAIN, Event.LOADED_OPEN, Event.DRAINED, Event.ABANDONED),
    ),
    "damage": (
        *(*LOADED, Event.DAMAGED),
        *(Event.APPEND_REQUESTED, Event.READ_REQUESTED, Event.RECOVERED),
    ),
    "lost-chain": (*LOADED, Event.CHAIN_LOST, Event.APPEND_REQUESTED, Event.ABANDONED),
    "deletion": (*LOADED, Event.STEP_FAILED, Event.DELETED, Event.APPEND_FAILED, Event.ABANDONED),
}


def told(story: tuple[Event, ...]) -> str:
    lifecycle, lines = Lifecycle(), []
    for event in story:
        before = lifecycle.state
        effects = lifecycle.on(event)
        to = "" if lifecycle.state is before else f" -> {lifecycle.state.value}"
        done = f": {', '.join(effect.value for effect in effects)}" if effects else ""
        lines.append(f"{before.value}: {event.value}{to}{done}\n")
    return "".join(lines)


@pytest.mark.parametrize("name", STORIES)
def test_transcript(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        path.write_text(told(STORIES[name]))
    assert told(STORIES[name]) == path.read_text()


def test_every_transcript_has_a_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(STORIES)
