"""Removes secrets from text that leaves the machine, such as a bundle for a bug report.

Invariants: pure. Removes too much rather than too little: a value is removed if its name, its form
or its place may be that of a secret.
"""

from __future__ import annotations

import re
from typing import Final

REMOVED: Final = "(removed)"
_WORDS = (
    r"pass(?:word|wd|phrase)|\bpwd|\bpass\b|cookie|stored_?key|server_?key|\bsalt\b|secret|token|credential|jaas|api[._-]?key|private[._-]?key"
    r"|keystore[._-]?key|key[._-]?pem|ssl[._-]?key"
)
_PATTERNS: Final = (
    # A PEM block, also with its line ends escaped, as in JSON and TOML.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    # An option of a command line, and its value.
    re.compile(r"(?i)(?<=-)[\w-]{0,32}(?:password|secret|token)[ \t]+[^\s-]\S*"),
    # user:password@ in a URL.
    re.compile(r"(?<=://)[^/\s@\"']{1,512}(?=@)"),
    # Schemes of HTTP's Authorization, and JSON Web Tokens.
    re.compile(r"(?i)\b(?:basic|bearer|digest|negotiate)\s+[\w+/=.~\-]{8,}"),
    re.compile(r"\beyJ[\w\-]{8,}\.[\w\-]+\.[\w\-]*"),
    re.compile(r"(?i)^.*\bauthorization\b.*$", re.MULTILINE),
)
_ASSIGNED: Final = re.compile(
    rf"(?i)(?P<name>(?:{_WORDS})[\w.\-]{{0,64}}[\"']?\s{{0,16}}[:=]\s{{0,16}})"
    r"(?P<value>\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|\[[^\]]*\]|[^\s,}\n][^\n]*)",
    re.DOTALL,
)
"""A name that contains one of the words, and its value. What the name begins with is not part of
it, so that the time is linear in the text's length."""


def without_secrets(text: str) -> str:
    """The text with "(removed)" in the place of what may be a secret."""
    text = _ASSIGNED.sub(rf'\g<name>"{REMOVED}"', text)
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    return text
