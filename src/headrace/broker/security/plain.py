"""SASL PLAIN (RFC 4616): a name and a password, as in HTTP Basic.

Invariants: no I/O. The password is checked against the user's SCRAM credentials, elsewhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.errors import AuthenticationFailed

PLAIN: Final = "PLAIN"
MESSAGE_BYTES_MAX: Final = 8_192
_PART_COUNT: Final = 3


class NamedPassword(NamedTuple):
    """A login by password. Not for logs."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"NamedPassword({self.user!r})"


def read_plain(message: bytes) -> NamedPassword:
    """The login in `authzid NUL user NUL password`, where the first part is empty or equal to the
    second. Raises AuthenticationFailed."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailed(f"a message of {len(message)} bytes")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a message that is not UTF-8") from error
    if len(parts) != _PART_COUNT or not parts[1] or not parts[2]:
        raise AuthenticationFailed("not three parts, or no user or password among them")
    if parts[0] not in {"", parts[1]}:
        raise AuthenticationFailed("the authorization id is not the user's name")
    return NamedPassword(parts[1], parts[2])


def write_plain(user: str, password: str) -> bytes:
    """A client's message."""
    return f"\0{user}\0{password}".encode()
