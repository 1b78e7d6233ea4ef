"""A client's login by SASL: the requests to send, and what their answers mean.

Invariants: no I/O; both transports run the same login. PLAIN and SCRAM only. A server that is asked
by SCRAM has to prove that it knows the password, too.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.security.plain import PLAIN, write_plain
from headrace.errors import AuthenticationFailed, MechanismUnsupported
from headrace.kafka.wire.primitives import FrameInvalid
from headrace.kafka.wire.schema import read_response, write_request
from headrace.runtime.scram import HASHES, ScramClient

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.runtime.access import Access

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
"""Do not change: protocol."""
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_UNSUPPORTED_MECHANISM: Final = 33


class LoginRequest(NamedTuple):
    """One request of a login."""

    api_key: int
    version: int
    body: bytes
    is_flexible: bool


class ClientLogin:
    """See the module. `next_request` until it returns None."""

    def __init__(self, mechanism: str, tokens: Generator[bytes, bytes, None]) -> None:
        self._steps = _requests(mechanism, tokens)
        self._is_begun = False

    def next_request(self, answer: bytes = b"") -> LoginRequest | None:
        """The next request, given the body of the answer to the one before; None: logged in.

        A step of SCRAM takes a millisecond. Raises AuthenticationFailed.
        """
        try:
            if not self._is_begun:
                self._is_begun = True
                return next(self._steps)
            return self._steps.send(answer)
        except StopIteration:
            return None
        except FrameInvalid as error:
            raise AuthenticationFailed(f"the answer to the login is malformed ({error})") from error


def login_of(access: Access) -> ClientLogin | None:
    """The login that an access needs; None: none. Raises MechanismUnsupported."""
    mechanism = access.mechanism.upper()
    if not mechanism:
        return None
    if mechanism == PLAIN:
        return ClientLogin(mechanism, _plain(access.user, access.password))
    if mechanism in HASHES:
        scram = ScramClient(mechanism, access.user, access.password, secrets.token_hex(16))
        return ClientLogin(mechanism, scram_tokens(scram))
    known = ", ".join((PLAIN, *HASHES))
    raise MechanismUnsupported(
        f"sasl.mechanism={mechanism[:40]!r} cannot be used by this command: use {known}"
    )


def _plain(user: str, password: str) -> Generator[bytes, bytes, None]:
    yield write_plain(user, password)


def scram_tokens(scram: ScramClient) -> Generator[bytes, bytes, None]:
    """The tokens of a login by SCRAM."""
    answer = yield scram.first()
    answer = yield scram.final(answer)
    scram.check(answer)


def _requests(
    mechanism: str, tokens: Generator[bytes, bytes, None]
) -> Generator[LoginRequest, bytes, None]:
    body = write_request(SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": mechanism})
    found = yield LoginRequest(SASL_HANDSHAKE, _HANDSHAKE_VERSION, body, is_flexible=False)
    answer: Any = read_response(SASL_HANDSHAKE, _HANDSHAKE_VERSION, found, 0)
    if answer.error_code == _UNSUPPORTED_MECHANISM:
        enabled = ", ".join(answer.mechanisms)
        raise AuthenticationFailed(
            f"the broker does not take {mechanism}: set sasl.mechanism to one of {enabled}"
        )
    if answer.error_code:
        raise AuthenticationFailed(
            f"the broker's listener does not use SASL (error {answer.error_code}): set"
            " security.protocol to PLAINTEXT or SSL, or use another port"
        )
    token = next(tokens)
    while True:
        body = write_request(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": token})
        found = yield LoginRequest(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, body, is_flexible=True)
        answer = read_response(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, found, 0)
        if answer.error_code:
            raise AuthenticationFailed(answer.error_message or f"error {answer.error_code}")
        try:
            token = tokens.send(bytes(answer.auth_bytes))
        except StopIteration:
            return
