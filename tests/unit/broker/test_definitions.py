"""Settings of topics and groups say what they accept, and accept that alone."""

from __future__ import annotations

import pytest

from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS, check_group_config
from headrace.broker.topics.topic_config import DEFINITIONS, Between, OneOf, check_config
from headrace.errors import ConfigInvalid

ALL = [(check_config, one) for one in DEFINITIONS.values()] + [
    (check_group_config, one) for one in GROUP_DEFINITIONS.values()
]


@pytest.mark.parametrize(("check", "definition"), ALL, ids=lambda value: getattr(value, "name", ""))
def test_every_setting_accepts_its_own_default(check, definition):
    check(definition.name, definition.default)


@pytest.mark.parametrize(
    ("check", "definition"),
    [pair for pair in ALL if isinstance(pair[1].check, Between)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_range_is_named_and_holds(check, definition):
    low, high = definition.check.low, definition.check.high
    for value in (low, high):
        check(definition.name, str(value))
    for value in (str(low - 1), str(high + 1), "", "1_0", "0x1", "٣"):
        with pytest.raises(ConfigInvalid, match=f"expected an integer from {low} to {high}"):
            check(definition.name, value)


@pytest.mark.parametrize(
    ("check", "definition"),
    [pair for pair in ALL if isinstance(pair[1].check, OneOf)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_words_of_a_choice_are_named_and_hold(check, definition):
    for word in definition.check.words:
        check(definition.name, word)
    with pytest.raises(ConfigInvalid, match=f"expected one of {', '.join(definition.check.words)}"):
        check(definition.name, "nothing-like-it")
