"""Escaping of log lines and table cells: one event stays one line, whatever a client sends.

Invariants: text in, text out. Names, client ids and header lines come from untrusted clients;
they must not control the terminal or forge log lines.
"""

from __future__ import annotations

import json
import logging
import re
import time

LINE_CHARACTERS_MAX = 2_000
TRACE_LINES_MAX = 200
TRACE_MARK = "  | "
"""Prefix of traceback lines, whose last one holds an error message, which may be any text."""

_UNPRINTABLE = re.compile(
    # control characters, line and paragraph separators, bidirectional formatting characters,
    # surrogates
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def one_line(text: str) -> str:
    """The text with all unprintable characters escaped (`\\n`, `\\x1b`, `\\u202e`)."""
    return _UNPRINTABLE.sub(
        lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text
    )


def cut(text: str, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    """The text, truncated with a note of its length if it is too long."""
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text)} characters)"


class JsonLine(logging.Formatter):
    """One JSON object per event, for systems that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        found = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage()),
        }
        if record.exc_info:
            lines = self.formatException(record.exc_info).split("\n")
            found["trace"] = "\n".join(map(cut, lines[-TRACE_LINES_MAX:]))
        return json.dumps(found)  # ASCII alone: nothing in it can control a terminal

    converter = staticmethod(time.gmtime)


class OneLine(logging.Formatter):
    """One bounded line per event; the lines of a traceback are prefixed and bounded, too."""

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
