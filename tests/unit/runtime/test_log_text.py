"""One event, one line: whatever its words are."""

from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.log_text import LINE_CHARACTERS_MAX, TRACE_MARK, OneLine, one_line

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def formatted(words: object, *args: object, error: BaseException | None = None) -> str:
    trouble = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("headrace.x", logging.WARNING, "", 0, words, args, trouble)
    return OneLine(FORMAT).format(record)


@given(st.text())
def test_any_words_make_one_printable_line_of_bounded_length(words):
    line = formatted("client %s is gone", words)
    assert len(line.splitlines()) == 1
    assert all(
        character == " " or character.isprintable() or ord(character) > 127 for character in line
    )
    assert len(line) < 7 * LINE_CHARACTERS_MAX


def test_printable_text_is_unchanged():
    for words in ("Zürich", "注文", "a\\b", "50 %", "\N{PARTY POPPER}"):
        assert one_line(words) == words


def test_control_characters_are_escaped():
    assert one_line("a\r\nb\x1b[31m\u202e\u2028\x00") == r"a\r\nb\x1b[31m\u202e\u2028\x00"
    assert one_line("\udcff") == r"\udcff"


def test_a_long_message_is_cut_and_says_how_long_it_was():
    line = formatted("x" * 1_000_000)
    assert len(line) < LINE_CHARACTERS_MAX + 100
    assert line.endswith("... (1000000 characters)")


def test_no_line_of_a_traceback_looks_like_one_of_ours():
    forged = "2026-01-01 00:00:00,000 INFO headrace: all is well"
    try:
        raise ValueError(f"bad\n{forged}\r{forged}")
    except ValueError as error:
        text = formatted("a fault", error=error)
    first, *others = text.splitlines()
    assert first.endswith("a fault")
    assert others
    assert all(line.startswith(TRACE_MARK) for line in others)
