"""Places in a log, as users write them."""

from __future__ import annotations

from datetime import datetime

import click
import pytest

from headrace.cli.positions import (
    Bounds,
    Partition,
    PositionSpec,
    TimeType,
    parse_position,
    resolve,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", PositionSpec("earliest")),
        ("beginning", PositionSpec("earliest")),
        ("latest", PositionSpec("latest")),
        ("end", PositionSpec("latest")),
        ("0", PositionSpec("offset", 0)),
        ("42", PositionSpec("offset", 42)),
        ("-10", PositionSpec("last", 10)),
        ("15m", PositionSpec("time", NOW_MS - 900_000)),
        ("-15m", PositionSpec("time", NOW_MS - 900_000)),
        ("1h30m", PositionSpec("time", NOW_MS - 5_400_000)),
        ("@1500", PositionSpec("time", 1500)),
        ("2013-01-31T12:00:00Z", PositionSpec("time", 1_359_633_600_000)),
        ("2013-01-31T13:00:00+01:00", PositionSpec("time", 1_359_633_600_000)),
    ],
)
def test_a_position_is_read_as_a_user_writes_it(text, position):
    assert parse_position(text, NOW_MS) == position


def test_a_time_without_zone_is_local():
    expected = int(datetime(2013, 1, 31, 12).astimezone().timestamp() * 1000)
    assert parse_position("2013-01-31T12:00", NOW_MS) == PositionSpec("time", expected)


@pytest.mark.parametrize(
    "text", ["", "soon", "4 2", "--3", "15x", "@", "@x", "2013-13-01", "\u0661"]
)
def test_malformed_positions_are_refused_with_the_choices(text):
    with pytest.raises(ValueError, match="none of: earliest, latest"):
        parse_position(text, NOW_MS)


@pytest.mark.parametrize("text", ["yesterday", "latest", "42", "15x"])
def test_what_is_no_time_is_refused_without_positions_that_are_none(text):
    with pytest.raises(click.BadParameter, match="is not a time such as 2013") as refused:
        TimeType().convert(text, None, None)
    assert "earliest" not in refused.value.message


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        (PositionSpec("earliest"), [5, 0]),
        (PositionSpec("latest"), [100, 3]),
        (PositionSpec("offset", 50), [50, 3]),
        (PositionSpec("offset", 2), [5, 2]),
        (PositionSpec("last", 10), [90, 0]),
    ],
)
def test_a_position_is_moved_inside_each_partition(position, offsets):
    bounds = {Partition("t", 0): Bounds(5, 100), Partition("t", 1): Bounds(0, 3)}
    assert list(resolve(None, position, bounds).values()) == offsets
