"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), for servers and clients.

Invariants: no I/O, no clock; chance comes in as a nonce. Proofs are compared in constant time. A
user that does not exist gets a salt that is always the same and looks like another user's, and
fails at the same step as a wrong password: names cannot be probed. Iterations are bounded in both
roles, so that neither side makes the other compute for long or weakens what is stored. No channel
binding (`n` only), as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import AuthenticationFailed, CredentialInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
HASHES: Final[Mapping[str, str]] = {SHA_256: "sha256", SHA_512: "sha512"}
"""Names of hash functions by mechanism."""
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
"""Kafka's bounds (`ScramMechanism`)."""
ITERATIONS: Final = 4_096
"""Of new credentials."""
MESSAGE_BYTES_MAX: Final = 8_192
NONCE_LENGTH_MAX: Final = 1_024
SALT_BITS: Final = 130
"""Of a new salt, which is a number in base 36, as `kafka-configs.sh` makes them."""
_SALT_DIGITS_MIN: Final = 20
"""Such a number has fewer digits once in 10^8 times."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_NAME: Final = r"(?:[^=,\x00]|=2C|=3D)+"
_CLIENT_FIRST: Final = re.compile(
    rf"(n,(?:a=({_NAME}))?,)(n=({_NAME}),r=({_NONCE})((?:,[A-Za-z]+=[^,\x00]+)*))"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(c=([A-Za-z0-9+/=]+),r=({_NONCE})(?:,[A-Za-z]=[^,\x00]+)*),p=([A-Za-z0-9+/=]+)"
)
_SERVER_FIRST: Final = re.compile(rf"r=({_NONCE}),s=([A-Za-z0-9+/=]+),i=([0-9]{{1,9}})(?:,.*)?")
_MANDATORY: Final = ",m="
_DELEGATION: Final = "tokenauth=true"
"""The extension by which a client logs in by a delegation token (KIP-48)."""


class ScramCredential(NamedTuple):
    """What is stored of a password: it proves a login, and cannot be used to log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 of the password: 1 ms at 4,096 iterations, so not for the event loop's thread."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password. Raises CredentialInvalid."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise CredentialInvalid(
            f"{iterations} iterations: between {ITERATIONS_MIN} and {ITERATIONS_MAX} are accepted"
        )
    name = HASHES[mechanism]
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", name), iterations)


def new_credential(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS
) -> ScramCredential:
    """The credential of a password. Slow; see salted_password. Raises CredentialInvalid."""
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def is_password(mechanism: str, credential: ScramCredential, password: str) -> bool:
    """Whether the credential is that of the password. Slow; see salted_password."""
    salt, iterations = credential.salt, credential.iterations
    salted = salted_password(mechanism, password, salt, iterations)
    name = HASHES[mechanism]
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


def salt_text(number: int) -> bytes:
    """A salt made of the low bits of `number`, of which SALT_BITS are used."""
    number &= (1 << SALT_BITS) - 1
    digits: list[str] = []
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode()


class CredentialForm(NamedTuple):
    """How a credential looks to whoever begins a login: who made it can be told from that."""

    iterations: int = ITERATIONS
    salt_length: int | None = None
    """None: it is as `salt_text` makes it."""
    has_digits: bool = True
    """Whether the salt has digits of base 36 alone; otherwise any bytes."""
    is_salt_shared: bool = False
    """Whether the user's credential for the other mechanism has the same salt."""


NEW_FORM: Final = CredentialForm()
"""That of new credentials."""


def form_of(credential: ScramCredential, *, is_salt_shared: bool = False) -> CredentialForm:
    """The form of a credential."""
    salt = credential.salt
    length: int | None = len(salt)
    has_digits = all(one in _DIGITS.encode() for one in salt)
    if has_digits and len(salt) >= _SALT_DIGITS_MIN and int(salt, 36) >> SALT_BITS == 0:
        length = None
    return CredentialForm(credential.iterations, length, has_digits, is_salt_shared)


def absent_credential(
    mechanism: str, secret: bytes, user: str, form: CredentialForm = NEW_FORM
) -> ScramCredential:
    """The credential of a user that does not exist: no password fits, and the salt looks like that
    of a user with the form and is the same on every broker that has the secret. With another form
    it is another one, as if the user had got another password."""
    name = HASHES[mechanism]
    of_salt = (form.salt_length, "shared") if form.is_salt_shared else (mechanism, form)
    seed = hmac.digest(secret, f"salt:{of_salt}:{user}".encode(), "sha256")
    stored_key, server_key = (
        hmac.digest(secret, f"{use}:{mechanism}:{user}".encode(), name)
        for use in ("stored", "server")
    )
    return ScramCredential(_absent_salt(seed, form), stored_key, server_key, form.iterations)


def _absent_salt(seed: bytes, form: CredentialForm) -> bytes:
    if form.salt_length is None:
        return salt_text(int.from_bytes(seed))
    expanded = hashlib.shake_256(seed)
    if not form.has_digits:
        return expanded.digest(form.salt_length)
    numbers = expanded.digest(4 * form.salt_length)
    return bytes(
        ord(_DIGITS[int.from_bytes(numbers[at : at + 4]) % len(_DIGITS)])
        for at in range(0, len(numbers), 4)
    )


class ScramLogin:
    """The server's side of one login: two messages from the client, two answers."""

    def __init__(
        self, mechanism: str, find: Callable[[str, bool], tuple[ScramCredential, bool]], nonce: str
    ) -> None:
        """`find` returns the credential of a user, or of a delegation token, and whether that
        exists; `nonce` is new for each login and cannot be predicted."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self.user = ""
        """Who is logging in, once that was said."""
        self.is_token = False
        """Whether that is the id of a delegation token."""
        self.credential: ScramCredential | None = None
        self._exists = False
        self._header = self._client_first = self._server_first = ""
        self._nonces: tuple[str, ...] = ()
        """What the final message may repeat. librdkafka before 2.6.1 puts its own nonce before it
        once more, which Kafka took until 4.0: Debian's kcat does. The nonce of this login is still
        there as a whole, so that no message of another login is taken."""

    def first(self, message: bytes) -> bytes:
        """The answer to the client's first message. Raises AuthenticationFailed."""
        self.read_first(message)
        return self.answer_first()

    def read_first(self, message: bytes) -> None:
        """Note who is logging in. Raises AuthenticationFailed."""
        match = _CLIENT_FIRST.fullmatch(_text(message))
        if match is None:
            raise AuthenticationFailed("malformed client-first-message")
        header, authzid, first, name, nonce, extensions = match.groups()
        if len(nonce) > NONCE_LENGTH_MAX or _MANDATORY in extensions:
            raise AuthenticationFailed("unsupported extension, or a nonce that is too long")
        user = _unescaped(name)
        if authzid is not None and _unescaped(authzid) != user:
            raise AuthenticationFailed("the authorization id is not the user's name")
        self.user = user
        self.is_token = _DELEGATION in extensions.split(",")
        self._header, self._client_first = header, first
        self._nonce = nonce + self._nonce
        self._nonces = self._nonce, nonce + self._nonce

    def answer_first(self) -> bytes:
        """What `first` returns, after `read_first`. Raises AuthenticationFailed."""
        self.credential, self._exists = self._find(self.user, self.is_token)
        salt = base64.b64encode(self.credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self.credential.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """The answer to the client's final message, who is authenticated then.

        Raises AuthenticationFailed.
        """
        match = _CLIENT_FINAL.fullmatch(_text(message))
        if match is None:
            raise AuthenticationFailed("malformed client-final-message")
        without_proof, binding, nonce, proof_text = match.groups()
        credential = self.credential
        assert credential is not None, "the first message comes first"
        if _decoded(binding) != self._header.encode() or nonce not in self._nonces:
            raise AuthenticationFailed("another channel binding or nonce than in the first message")
        name = HASHES[self._mechanism]
        signed = f"{self._client_first},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, signed, name)
        proof = _decoded(proof_text)
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_proven = hmac.compare_digest(hashlib.new(name, key).digest(), credential.stored_key)
        if not is_proven or len(proof) != len(signature) or not self._exists:
            raise AuthenticationFailed("wrong password, or no such user")
        if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(f"stored with {credential.iterations} iterations")
        verifier = hmac.digest(credential.server_key, signed, name)
        return b"v=" + base64.b64encode(verifier)


class ScramClient:
    """The client's side of one login. `is_token`: by a delegation token."""

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, *, is_token: bool = False
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._first = f"n={_escaped(user)},r={nonce}" + f",{_DELEGATION}" * is_token
        self._verifier = b""

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._first}".encode()

    def final(self, answer: bytes) -> bytes:
        """The final message. Slow; see salted_password. Raises AuthenticationFailed."""
        match = _SERVER_FIRST.fullmatch(_text(answer))
        if match is None:
            raise AuthenticationFailed("the server's answer to the login is malformed")
        nonce, salt_of, iterations = match[1], _decoded(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the server's nonce does not extend the client's")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the server asks for {iterations} iterations: between {ITERATIONS_MIN} and"
                f" {ITERATIONS_MAX} are accepted"
            )
        name = HASHES[self._mechanism]
        salted = salted_password(self._mechanism, self._password, salt_of, iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first},{_text(answer)},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._verifier = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Check that the server knows the password, too. Raises AuthenticationFailed."""
        text = _text(answer)
        if not text.startswith("v=") or not hmac.compare_digest(
            _decoded(text[2:].split(",")[0]), self._verifier
        ):
            raise AuthenticationFailed("the server does not know the password: do not trust it")


def _text(message: bytes) -> str:
    """Raises AuthenticationFailed."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailed(f"a message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a message that is not UTF-8") from error


def _decoded(text: str) -> bytes:
    """Raises AuthenticationFailed."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise AuthenticationFailed("a message with malformed base64") from error


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
