"""Values of settings: what is accepted is written back the same; nothing else raises."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.settings.table import SETTINGS


@given(st.sampled_from(sorted(SETTINGS)), st.text() | st.integers().map(str))
def test_a_value_is_refused_or_means_the_same_when_it_is_written_back(name: str, text: str) -> None:
    kind = SETTINGS[name].kind
    value, refused = None, ""
    try:
        value = kind.parse(text)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert kind.expected in refused
    else:
        assert kind.parse(kind.format(value)) == value
