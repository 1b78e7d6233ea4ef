"""Bearer tokens: what is accepted, and every known way to get one accepted that should not be."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from typing import TYPE_CHECKING, Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from tests.clocks import HandClock

from headrace.broker.security import tokens
from headrace.broker.security.tokens import Tokens, TokenSettings, parse_keys
from headrace.errors import AuthenticationFailed, ConfigInvalid
from headrace.runtime.documents import check_document_url, read_document
from headrace.runtime.slow_calls import SlowCalls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
NOW_S = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.example", "headrace"
KEYS: dict[str, Any] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}),
    "EdDSA": OKPKey.generate_key("Ed25519", {"kid": "ed"}),
}
CLAIMS = {
    "iss": ISSUER,
    "aud": ["other", AUDIENCE],
    "sub": "alice",
    "iat": NOW_S - 10,
    "exp": NOW_S + 300,
}


class TokensOfFile:
    """Tokens that are judged by the keys in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.publish(*KEYS.values())
        self.clock = HandClock(NOW_S * 1_000)
        self.threads = SlowCalls("test")
        settings = TokenSettings(path.as_uri(), ISSUER, [AUDIENCE])
        self.tokens = Tokens(settings, self.clock, self.threads)

    def publish(self, *keys: Any) -> None:
        entries = [one.as_dict(private=False) for one in keys]
        self.path.write_text(json.dumps({"keys": entries}))

    def judge(self, *given: str) -> list[Any]:
        """The result for each token, with keys that are loaded once."""

        async def scenario() -> list[Any]:
            await self.tokens.load()
            found: list[Any] = []
            for one in given:
                try:
                    found.append(await self.tokens.judge(one))
                except AuthenticationFailed as error:
                    found.append(error)
            return found

        return asyncio.run(scenario())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TokensOfFile]:
    made = TokensOfFile(tmp_path / "keys.json")
    yield made
    made.threads.close()


def token(algorithm: str = "RS256", key: Any = None, **changes: Any) -> str:
    """A signed token; a claim that is None is left out."""
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    signer = key or KEYS[algorithm]
    header = {"alg": algorithm, **({"kid": signer.kid} if signer.kid else {})}
    return jwt.encode(header, claims, signer, algorithms=[algorithm])


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(CLAIMS).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_the_issuer_names_its_user_and_when_it_expires(rig, algorithm):
    assert rig.judge(token(algorithm)) == [("alice", (NOW_S + 300) * 1_000)]


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"iat": None},
        {"aud": None},
        {"iss": None},
        {"sub": None},
        {"exp": NOW_S - 31},
        {"exp": "never"},
        {"exp": True},
        {"exp": 1e300},
        {"exp": NOW_S - 20, "iat": NOW_S - 10},  # within the skew, and never valid
        {"iat": NOW_S + 60},
        {"nbf": NOW_S + 60},
        {"iss": "https://evil.example"},
        {"iss": [ISSUER]},
        {"aud": "other"},
        {"aud": []},
        {"aud": {AUDIENCE: 1}},
        {"sub": ""},
        {"sub": 7},
        {"sub": "a\nb"},
        {"sub": "a" * 1_000},
    ],
    ids=str,
)
def test_a_token_with_a_claim_that_is_missing_or_wrong_is_refused(rig, changes):
    (found,) = rig.judge(token(**changes))
    assert isinstance(found, AuthenticationFailed)


def test_clocks_may_differ_by_the_skew(rig):
    late, early = token(iat=NOW_S - 300, exp=NOW_S - 20), token(iat=NOW_S + 20)
    assert [one.user for one in rig.judge(late, early)] == ["alice", "alice"]


def _hmac_with_public_key(algorithm: str) -> str:
    """Key confusion: the public key as the secret of an HMAC."""
    signed = unsigned({"alg": algorithm, "kid": "rsa"}).rstrip(".")
    secret = KEYS["RS256"].as_pem(private=False)
    digest = hmac.digest(secret, signed.encode(), "sha" + algorithm[2:])
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _forged() -> list[str]:
    stranger = RSAKey.generate_key(2048, {"kid": "rsa"})
    good = token()
    head, body, signature = good.split(".")
    other = base64.urlsafe_b64encode(json.dumps({**CLAIMS, "sub": "root"}).encode()).rstrip(b"=")
    return [
        unsigned({"alg": "none"}),
        unsigned({"alg": "None", "kid": "rsa"}),
        unsigned({"alg": "RS256", "kid": "rsa"}),
        unsigned({"kid": "rsa"}),
        unsigned({"alg": ["RS256"], "kid": "rsa"}),
        unsigned({"alg": "RS256", "kid": ["rsa"]}),
        unsigned({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False}, b"x"),
        *(_hmac_with_public_key(one) for one in ("HS256", "HS384", "HS512")),
        token(key=stranger),
        token("ES256", ECKey.generate_key("P-256", {"kid": "rsa"})),  # a key of another kind
        f"{head}.{other.decode()}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{good}.x.y",
        "",
        "a.b.c",
        "[" * 100_000,
    ]


def test_a_forged_token_is_refused(rig):
    forged = _forged()
    for one, found in zip(forged, rig.judge(*forged), strict=True):
        assert isinstance(found, AuthenticationFailed), one


def test_a_key_in_the_token_itself_is_never_used(rig):
    stranger = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "jwk": stranger.as_dict(private=False)}
    embedded = jwt.encode(header, CLAIMS, stranger, algorithms=["RS256"])
    (found,) = rig.judge(embedded)
    assert isinstance(found, AuthenticationFailed)


async def test_an_unknown_key_id_causes_one_refresh_in_a_while(rig, monkeypatch):
    reads = []
    monkeypatch.setattr(
        tokens, "read_document", lambda url: reads.append(url) or read_document(url)
    )
    new = RSAKey.generate_key(2048, {"kid": "new"})
    flood = [
        token(key=RSAKey.import_key(new.as_dict(private=True), {"kid": f"x{n}"})) for n in range(50)
    ]

    await rig.tokens.load()
    rig.publish(*KEYS.values(), new)
    rig.clock.ms += 60_000
    found = await asyncio.gather(*(rig.tokens.judge(one) for one in flood), return_exceptions=True)
    assert all(isinstance(one, AuthenticationFailed) for one in found)
    assert len(reads) == 2  # at the start, and for the flood
    assert (await rig.tokens.judge(token(key=new))).user == "alice"
    rig.clock.ms += 60_000
    rig.path.unlink()  # the issuer is down: known keys stay in use
    assert isinstance(
        (await asyncio.gather(rig.tokens.judge(flood[0]), return_exceptions=True))[0],
        AuthenticationFailed,
    )
    assert (await rig.tokens.judge(token(key=new))).user == "alice"


@pytest.mark.parametrize("parameters", [{"kid": "rsa"}, {}], ids=["an id", "no id"])
async def test_a_key_that_was_replaced_under_the_same_id_is_read_again(
    rig, parameters, monkeypatch
):
    reads = []
    monkeypatch.setattr(
        tokens, "read_document", lambda url: reads.append(url) or read_document(url)
    )
    old, new, other = (RSAKey.generate_key(2048, parameters, auto_kid=False) for _ in range(3))
    rig.publish(old)
    await rig.tokens.load()
    assert (await rig.tokens.judge(token(key=old))).user == "alice"
    rig.publish(new)
    rig.clock.ms += 60_000
    assert (await rig.tokens.judge(token(key=new))).user == "alice"
    for forged in (old, other, other):
        with pytest.raises(AuthenticationFailed):
            await rig.tokens.judge(token(key=forged))
    assert len(reads) == 2, "forged signatures cause no more than one in a while"


async def test_a_key_that_the_issuer_has_withdrawn_is_refused_after_an_hour(rig):
    await rig.tokens.load()
    rig.publish(KEYS["ES256"])
    rig.clock.ms += 3_601_000
    with pytest.raises(AuthenticationFailed):
        await rig.tokens.judge(token(exp=NOW_S + 10_000))


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_a_key_set_without_usable_keys_refuses_to_start(rig):
    short = RSAKey.generate_key(1024, {"kid": "short"})
    secret = OctKey.generate_key(256, {"kid": "rsa"})
    for text in (
        "",
        "[]",
        "{}",
        '{"keys": 7}',
        '{"keys": [7]}',
        '{"keys": [{"kty": "RSA"}]}',
        json.dumps({"keys": [short.as_dict(private=False)]}),
        json.dumps({"keys": [secret.as_dict()]}),
        json.dumps({"keys": [{**KEYS["RS256"].as_dict(private=False), "use": "enc"}]}),
    ):
        with pytest.raises(ConfigInvalid):
            parse_keys(text.encode())
        rig.path.write_text(text)
        with pytest.raises(ConfigInvalid):
            asyncio.run(rig.tokens.load())


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "ftp://issuer.example/keys",
        "https:///keys",
        "https://user:secret@issuer.example/keys",
        "file://issuer.example/keys",
        "keys.json",
        "",
        "https://[",
    ],
)
def test_keys_come_only_from_a_file_or_over_tls(url):
    with pytest.raises(ConfigInvalid):
        check_document_url(url)
