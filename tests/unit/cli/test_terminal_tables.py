"""Tables on a terminal: no cell is cut or broken, however narrow the terminal is."""

from __future__ import annotations

import sys

import click
import pytest
from rich.cells import cell_len

from headrace.cli.output import print_table

COLUMNS = ("topic", "committed", "lag (messages)", "time", "member")
ROWS = [
    ("orders", 1, 2_000, "2026-11-29T00:30:54.193Z", "consumer-1"),
    ("orders-of-yesterday", 10, 0, "2026-11-29T00:30:54.194Z", None),
]


def drawn(monkeypatch, capsys, width, columns=COLUMNS, rows=ROWS):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(columns, rows)
    return [line.rstrip() for line in click.unstyle(capsys.readouterr().out).splitlines()]


@pytest.mark.parametrize("width", [40, 60, 76, 80, 200])
def test_no_value_is_cut_or_broken(width, monkeypatch, capsys):
    lines = drawn(monkeypatch, capsys, width)
    assert max(map(len, lines)) <= width
    for value in ("orders-of-yesterday", "2026-11-29T00:30:54.193Z", "consumer-1", "2,000"):
        assert any(value in line for line in lines), value


def test_a_row_is_a_line_where_it_fits(monkeypatch, capsys):
    assert len(drawn(monkeypatch, capsys, 100)) == 2 + len(ROWS)


def test_headings_are_folded_before_rows_become_blocks(monkeypatch, capsys):
    head, second, *_rule_and_rows = drawn(monkeypatch, capsys, 80)
    assert head.split() == ["lag"]
    assert second.split() == ["topic", "committed", "(messages)", "time", "member"]


def test_a_row_that_does_not_fit_is_a_block_of_named_values(monkeypatch, capsys):
    lines = drawn(monkeypatch, capsys, 60)
    assert "topic           orders" in lines
    assert "lag (messages)  2,000" in lines
    assert "member          -" in lines
    assert lines.count("") == 1  # between the two


def test_a_long_text_at_the_end_of_a_row_is_folded(monkeypatch, capsys):
    lines = drawn(monkeypatch, capsys, 60, ("key", "value"), [("ada", "x" * 150)])
    assert sum(line.count("x") for line in lines) == 150
    assert lines[2].startswith("ada  x")


def test_wide_letters_count_twice(monkeypatch, capsys):
    rows = [("你好" * 8, 1), ("ada", 2)]
    lines = drawn(monkeypatch, capsys, 60, ("key", "partition"), rows)
    assert {cell_len(line) for line in lines[2:]} == {32 + 2 + len("partition")}


def test_values_are_text_and_not_markup(monkeypatch, capsys):
    assert "[red]" in "".join(drawn(monkeypatch, capsys, 10, ("key", "value"), [("[red]", "[b]")]))
