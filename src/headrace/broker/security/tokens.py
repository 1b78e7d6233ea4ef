"""Judges bearer tokens: JSON Web Tokens (RFC 7519) signed by a configured issuer.

Invariants: a token is accepted only if its signature is by a key of the configured key set (RFC
7517) and an asymmetric algorithm of `ALGORITHMS`, and if issuer, audience, expiry, time of issue
and subject are all there and right. Nothing is optional: settings that are incomplete refuse to
start. Keys are read before the port opens; a key id that is not among them causes one refresh, at
most every REFRESH_REST_S. The signature is checked in a thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from joserfc import jws, jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from headrace.errors import AuthenticationFailed, ConfigInvalid
from headrace.runtime.documents import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joserfc.jwk import Key

    from headrace.runtime.clock import Clock
    from headrace.runtime.slow_calls import SlowCalls

log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""No `none`, and no HMAC: a public key must not serve as a secret."""
# Issuers still write `EdDSA` for Ed25519 (RFC 9864 deprecates the name, not the algorithm).
warnings.filterwarnings("ignore", "EdDSA is deprecated", SecurityWarning)
_REGISTRY: Final = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
_KEY_KINDS: Final[Mapping[str, type[RSAKey | ECKey | OKPKey]]] = {
    "RS": RSAKey,
    "PS": RSAKey,
    "ES": ECKey,
    "Ed": OKPKey,
}
RSA_BITS_MIN: Final = 2_048
KEYS_MAX: Final = 100
SKEW_S: Final = 30
REFRESH_REST_S: Final = 10
REFRESH_S: Final = 3_600
"""Keys that the issuer has withdrawn are refused after this time."""
USER_LENGTH_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Which tokens are accepted."""

    keys_url: str
    issuer: str
    audiences: Sequence[str]
    subject_claim: str = "sub"
    skew_s: int = SKEW_S


class TokenUser(NamedTuple):
    """Who a token was issued to, and until when it holds."""

    user: str
    expires_ms: int


class Tokens:
    """See the module."""

    def __init__(self, settings: TokenSettings, clock: Clock, threads: SlowCalls) -> None:
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._keys: list[Key] = []
        self._read_ns = 0
        self._tried_ns = 0
        self._refreshing: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read the keys. Raises ConfigInvalid: tokens cannot be judged without."""
        self._tried_ns = self._clock.now_ns()
        try:
            self._keys = await self._threads.run(self._read_keys)
        except (OSError, ConfigInvalid) as error:
            raise ConfigInvalid(
                f"the keys of token issuers cannot be read from {self._settings.keys_url}: {error}."
                " Check sasl.oauthbearer.jwks.endpoint.url"
            ) from error
        self._read_ns = self._clock.now_ns()

    def _read_keys(self) -> list[Key]:
        return parse_keys(read_document(self._settings.keys_url))

    async def judge(self, token: str) -> TokenUser:
        """Who the token was issued to. Raises AuthenticationFailed."""
        header = _header(token)
        key = self._key(header)
        if key is None or self._clock.now_ns() - self._read_ns > REFRESH_S * 1_000_000_000:
            await self._refresh()
            key = self._key(header)
        if key is None:
            raise AuthenticationFailed("signed with an unknown key")
        try:
            claims = await self._threads.run(partial(_verified, token, key))
        except AuthenticationFailed:
            # The issuer may have another key under the same id, or without one.
            await self._refresh()
            new = self._key(header)
            if new is None or new.thumbprint() == key.thumbprint():
                raise
            claims = await self._threads.run(partial(_verified, token, new))
        return self._user(claims)

    def _key(self, header: Mapping[str, Any]) -> Key | None:
        """The key that a header names; without a name, the only one that fits."""
        kind = _KEY_KINDS[header["alg"][:2]]
        fitting = [one for one in self._keys if isinstance(one, kind) and _may_sign(one, header)]
        if "kid" in header:
            fitting = [one for one in fitting if one.kid == header["kid"]]
        return fitting[0] if len(fitting) == 1 else None

    async def _refresh(self) -> None:
        """Read the keys again, unless that was tried just now."""
        if self._refreshing is None:
            if self._clock.now_ns() - self._tried_ns < REFRESH_REST_S * 1_000_000_000:
                return
            self._refreshing = asyncio.ensure_future(self._try_load())
        await asyncio.shield(self._refreshing)

    async def _try_load(self) -> None:
        try:
            await self.load()
        except ConfigInvalid as error:
            log.warning("%s; the keys that are known stay in use", error)
        finally:
            self._refreshing = None

    def _user(self, claims: Mapping[str, Any]) -> TokenUser:
        settings = self._settings
        now_s = self._clock.now_ms() / 1_000
        expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
        if expires_s <= now_s - settings.skew_s:
            raise AuthenticationFailed("the token has expired")
        starts_s = max(issued_s, _time(claims, "nbf") if "nbf" in claims else issued_s)
        if starts_s > now_s + settings.skew_s or expires_s < issued_s:
            raise AuthenticationFailed("the token is not valid yet, or never")
        if claims.get("iss") != settings.issuer:
            raise AuthenticationFailed("the token is of another issuer")
        given = claims.get("aud")
        audiences = given if isinstance(given, list) else [given]
        if not any(one in settings.audiences for one in audiences if isinstance(one, str)):
            raise AuthenticationFailed("the token is for another audience")
        user = claims.get(settings.subject_claim)
        if not isinstance(user, str) or not user.isprintable():
            raise AuthenticationFailed(f"the token has no {settings.subject_claim} that is a name")
        if not 0 < len(user) <= USER_LENGTH_MAX:
            raise AuthenticationFailed("the token's subject is empty or too long")
        return TokenUser(user, int(expires_s * 1_000))


def parse_keys(data: bytes) -> list[Key]:
    """The keys of a JSON Web Key Set that may sign tokens. Raises ConfigInvalid."""
    try:
        found = json.loads(data)["keys"]
        entries = [one for one in found if one.get("kty") in {"RSA", "EC", "OKP"}]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigInvalid(f"not a JSON Web Key Set ({type(error).__name__})") from error
    keys: list[Key] = []
    for entry in entries[:KEYS_MAX]:
        try:
            (key,) = KeySet.import_key_set({"keys": [entry]}).keys
        except (JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("a key of the set is passed over: %s", type(error).__name__)
            continue
        is_short = isinstance(key, RSAKey) and key.public_key.key_size < RSA_BITS_MIN
        if not is_short and entry.get("use", "sig") == "sig":
            keys.append(key)
    if not keys:
        raise ConfigInvalid("the key set has no public key that may sign tokens")
    return keys


def _may_sign(key: Key, header: Mapping[str, Any]) -> bool:
    algorithm = key.get("alg")
    return algorithm is None or algorithm == header["alg"]


def _header(token: str) -> Mapping[str, Any]:
    """The token's header, which nothing vouches for yet. Raises AuthenticationFailed."""
    try:
        header = jws.extract_compact(token.encode()).headers()
    except (JoseError, ValueError, RecursionError) as error:
        raise AuthenticationFailed("not a JSON Web Token") from error
    if header.get("alg") not in ALGORITHMS:
        raise AuthenticationFailed(f"signed by {str(header.get('alg'))[:20]!r}, not accepted here")
    if not isinstance(header.get("kid", ""), str) or "crit" in header:
        raise AuthenticationFailed("a header that is not understood")
    return header


def _verified(token: str, key: Key) -> Mapping[str, Any]:
    """The claims, after their signature was checked. Raises AuthenticationFailed."""
    try:
        return jwt.decode(token, key, registry=_REGISTRY).claims
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise AuthenticationFailed("the signature is invalid") from error


def _time(claims: Mapping[str, Any], name: str) -> float:
    """A time in seconds since the epoch. Raises AuthenticationFailed."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e11:
        raise AuthenticationFailed(f"the token has no {name} that is a time")
    return float(value)
