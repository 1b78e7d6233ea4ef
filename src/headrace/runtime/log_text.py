"""Lines of the log, and of tables: whatever a client calls itself, one event stays one line.

Invariants: text in, text out. Names, client ids and header lines come from anybody who can
connect; on a terminal they must not move the cursor, in a file not look like a line of ours.
"""

from __future__ import annotations

import logging
import re

LINE_CHARACTERS_MAX = 2_000
TRACE_LINES_MAX = 200
TRACE_MARK = "  | "
"""Before each line of a traceback: its last one holds an error's words, and those any words."""

_UNPRINTABLE = re.compile(
    # control characters, line and paragraph separators, marks that turn the direction of writing,
    # halves of characters
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def one_line(text: str) -> str:
    """The text with everything escaped that is not simply shown (`\\n`, `\\x1b`, `\\u202e`)."""
    return _UNPRINTABLE.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def cut(text: str, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    """The text, or its beginning and how long it was."""
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text)} characters)"


class OneLine(logging.Formatter):
    """A line for each event, bounded; a traceback behind it is marked and bounded, too."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's own name
        """See logging.Formatter."""
        record.message = one_line(cut(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 -- logging's own name
        """See logging.Formatter."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        if len(lines) > TRACE_LINES_MAX:
            half = TRACE_LINES_MAX // 2
            left_out = f"... {len(lines) - 2 * half} lines ..."
            lines = [*lines[:half], left_out, *lines[-half:]]
        return "\n".join(TRACE_MARK + one_line(cut(line)) for line in lines)
