"""A login at a bookie: SASL DIGEST-MD5 in AUTH messages of protocol version 2.

Invariants: bytes in, bytes out; no sockets, no logs. The password is sent nowhere, and both sides
prove that they know it. MD5 is what BookKeeper offers beside Kerberos: it protects no weak password
from somebody who reads the connection, and encrypts nothing, so use it inside TLS.
Source: RFC 2831; `SASLBookieAuthProvider`, `AuthHandler`, `SaslConstants` of BookKeeper 4.17.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final

from headrace.errors import RequestInvalid
from headrace.runtime.protobuf_wire import ProtobufInvalid, bytes_field, fields
from headrace.storage.bookkeeper.wire import VERSION, MalformedFrame

if TYPE_CHECKING:
    from collections.abc import Mapping

AUTH: Final = 3
PROVIDER: Final = b"sasl"
"""How the bookies' `SASLBookieAuthProviderFactory` is named on the wire."""
_DIGEST_URI: Final = "bookkeeper/bookkeeper"
_COUNT: Final = "00000001"
_DIRECTIVE: Final = re.compile(r'\s*([A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')


def auth_frame(payload: bytes) -> bytes:
    """The frame of an AUTH message."""
    message = bytes_field(1, PROVIDER) + bytes_field(2, payload)
    header = (VERSION << 24 | AUTH << 16).to_bytes(4)
    return (len(header) + len(message)).to_bytes(4) + header + message


def is_auth(frame: bytes) -> bool:
    """Whether a response, without its length, is to an AUTH message."""
    return frame[:2] == bytes((VERSION, AUTH))


def auth_payload(frame: bytes) -> bytes | None:
    """What the bookie's provider answers; None if it has another one. Raises MalformedFrame."""
    if not is_auth(frame):
        raise MalformedFrame(f"{len(frame)} bytes that are not a response to AUTH")
    try:
        found = {number: value for number, _kind, value in fields(frame[4:])}
    except ProtobufInvalid as error:
        raise MalformedFrame(f"a response to AUTH that is malformed: {error}") from error
    payload = found.get(2)
    if found.get(1) != PROVIDER or not isinstance(payload, bytes):
        return None
    return payload


def check_credential(text: str) -> tuple[str, str]:
    """User and password. Raises RequestInvalid, without them."""
    user, _, password = text.partition(":")
    if not user or not password:
        raise RequestInvalid("the credential for bookies is not USER:PASSWORD")
    if re.search(r'[^ -~]|["\\]', user) or re.search(r"[^ -~]", password):
        raise RequestInvalid(
            "the credential for bookies has characters for which DIGEST-MD5 has more than one"
            ' encoding: use printable ASCII, and no " and \\ in the user'
        )
    return user, password


class DigestLogin:
    """One login of a client."""

    def __init__(self, credential: str, nonce: str) -> None:
        """`credential` is USER:PASSWORD, and `nonce` is used once. Raises RequestInvalid."""
        self.user, self._password = check_credential(credential)
        self._nonce = nonce
        self._proof = ""

    def answer(self, challenge: bytes) -> bytes:
        """The response to the bookie's challenge. Raises MalformedFrame."""
        given = _directives(challenge)
        realm, nonce = given.get("realm", ""), given.get("nonce", "")
        offered = given.get("qop", "auth").replace(" ", "").split(",")
        if not nonce or given.get("algorithm") != "md5-sess" or "auth" not in offered:
            raise MalformedFrame("a challenge that is not one of DIGEST-MD5 with qop=auth")
        secret = _md5(f"{self.user}:{realm}:{self._password}".encode())
        session = _md5(secret + f":{nonce}:{self._nonce}".encode()).hex()

        def proof(method: str) -> str:
            what = _md5(f"{method}:{_DIGEST_URI}".encode()).hex()
            return _md5(f"{session}:{nonce}:{_COUNT}:{self._nonce}:auth:{what}".encode()).hex()

        self._proof = proof("")
        quoted = {
            "username": self.user,
            "realm": realm,
            "nonce": nonce,
            "cnonce": self._nonce,
            "digest-uri": _DIGEST_URI,
        }
        texts = [f"{name}={_quoted(value)}" for name, value in quoted.items()]
        plain = f"nc={_COUNT},qop=auth,charset=utf-8,response={proof('AUTHENTICATE')}"
        return ",".join([*texts, plain]).encode()

    def is_proven(self, final: bytes) -> bool:
        """Whether the bookie knows the password, too. Raises MalformedFrame."""
        shown = _directives(final).get("rspauth", "")
        return bool(self._proof) and hmac.compare_digest(shown.encode(), self._proof.encode())


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _quoted(value: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def _directives(data: bytes) -> Mapping[str, str]:
    """Raises MalformedFrame."""
    found: dict[str, str] = {}
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame("a message of DIGEST-MD5 that is not UTF-8") from error
    at = 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None:
            raise MalformedFrame("a malformed message of DIGEST-MD5")
        name, quoted, plain = match.groups()
        found.setdefault(name.lower(), plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        at = match.end()
    return found
