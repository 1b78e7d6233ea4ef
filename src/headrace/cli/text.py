"""Bytes as text, for people: escapes in options, control characters on a terminal.

Invariants: pure.
"""

from __future__ import annotations

import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[ntr0\\])")
# A record must not be able to move the cursor, set the title or send input to the terminal.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code not in (9, 10)
}


def unescape(text: str) -> str:
    r"""Read \n, \t, \r, \0, \\ and \xNN as the characters that they stand for."""
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]


def for_terminal(data: bytes) -> bytes:
    """The same text with control characters made visible (newline and tab stay)."""
    return visible(data.decode("utf-8", "backslashreplace")).encode()


def visible(text: str) -> str:
    """As `for_terminal`, of a message that may quote a record."""
    return text.translate(_CONTROLS)
