"""SASL OAUTHBEARER (RFC 7628): the messages around a bearer token.

Invariants: no I/O; the token itself is judged by `tokens`. A refusal takes two steps: an error in
JSON inside a successful answer, then, after the client's reply of one byte, the failure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headrace.errors import AuthenticationFailed

OAUTHBEARER: Final = "OAUTHBEARER"
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
TOKEN_LENGTH_MAX: Final = 16_384
_MESSAGE_BYTES_MAX: Final = 64 * 1024
_MESSAGE: Final = re.compile(
    r"n,(?:a=((?:[^=,\x00\x01]|=2C|=3D)+))?,\x01"
    r"((?:[A-Za-z]+=[\x20-\x7e\r\n\t]*\x01)+)\x01"
)
_SCHEME: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")


class BearerToken(NamedTuple):
    """A token, not judged yet. Not for logs."""

    token: str
    authorization_id: str
    """Empty: not given. Otherwise it has to be the token's principal."""

    def __repr__(self) -> str:
        return "BearerToken(...)"


def read_scheme(value: str) -> str:
    """The token in `Bearer TOKEN`, as in HTTP's Authorization. Raises AuthenticationFailed."""
    match = _SCHEME.fullmatch(value)
    if match is None or len(match[1]) > TOKEN_LENGTH_MAX:
        raise AuthenticationFailed("no bearer token, or one that is too long")
    return match[1]


def read_bearer(message: bytes) -> BearerToken:
    """The token of a client's first message. Raises AuthenticationFailed."""
    if len(message) > _MESSAGE_BYTES_MAX:
        raise AuthenticationFailed(f"a message of {len(message)} bytes")
    try:
        match = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a message that is not UTF-8") from error
    if match is None:
        raise AuthenticationFailed("malformed message")
    fields = [item.split("=", 1) for item in match[2].split("\x01")[:-1]]
    tokens = [value for name, value in fields if name == "auth"]
    if len(tokens) != 1:
        raise AuthenticationFailed(f"{len(tokens)} tokens in one message")
    authorization_id = (match[1] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerToken(read_scheme(tokens[0]), authorization_id)
