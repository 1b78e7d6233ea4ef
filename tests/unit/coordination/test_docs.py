"""The documents draw the transition tables, no more and no less."""

import re
from pathlib import Path

from headrace.coordination.groups.group import TRANSITIONS
from headrace.coordination.transactions import rules
from headrace.coordination.transactions.state_records import STATE_NAMES

DOCS = Path(__file__).parents[3] / "docs"


def drawn_in(page: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^ +(\w+) --> (\w+): (.+)$", (DOCS / page).read_text(), re.MULTILINE)


def test_the_diagram_of_groups_is_the_transition_table():
    drawn = drawn_in("GROUPS.md")
    assert {(start, end): cause for start, end, cause in drawn} == TRANSITIONS
    assert len(drawn) == len(TRANSITIONS)


def test_the_diagram_of_transactions_is_the_transition_table():
    drawn = drawn_in("TRANSACTIONS.md")
    expected = {
        (STATE_NAMES[start], STATE_NAMES[end]): cause
        for (start, end), cause in rules.TRANSITIONS.items()
    }
    assert {(start, end): cause for start, end, cause in drawn} == expected
    assert len(drawn) == len(expected)
