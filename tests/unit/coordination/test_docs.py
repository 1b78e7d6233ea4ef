"""docs/GROUPS.md draws the transition table, no more and no less."""

import re
from pathlib import Path

from headrace.coordination.groups.group import TRANSITIONS

GROUPS_PAGE = Path(__file__).parents[3] / "docs" / "GROUPS.md"


def test_the_diagram_is_the_transition_table():
    drawn = re.findall(r"^ +(\w+) --> (\w+): (.+)$", GROUPS_PAGE.read_text(), re.MULTILINE)
    assert {(start, end): cause for start, end, cause in drawn} == TRANSITIONS
    assert len(drawn) == len(TRANSITIONS)
