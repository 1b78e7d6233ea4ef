"""Logins, sessions and rights on a broker that authenticates: what must not be got around.

Invariants: as in `names`; the broker is that of `secured`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from typing import TYPE_CHECKING, Any, Final

from joserfc import jwt

from headrace.kafka.apis import APIS
from headrace.runtime.clock import SystemClock
from headrace_verify.kafka_wire import answer_of
from headrace_verify.security.asking import request
from headrace_verify.security.secured import (
    ADMIN,
    AUDIENCE,
    AUTHENTICATE,
    HANDSHAKE,
    ISSUER,
    ITERATIONS,
    KEY,
    MALLORY,
    Secured,
    basic,
)

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

API_VERSIONS, ALTER_SCRAM, CREATE_ACLS = 18, 51, 30
_OPEN: Final = frozenset({HANDSHAKE, API_VERSIONS, AUTHENTICATE})
_PATHS: Final = ("/v1/topics", "/v1/cluster", "/v1/keys", "/metrics", "/openapi.json", "/v1/quotas")
_SCRAM: Final = "SCRAM-SHA-512"
_FRAME_MAX: Final = 524_288
BAD_CREDENTIALS, BAD_ITERATIONS = 58, 93


def _frame(api: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api, version, 1, 1) + b"x"
    if version >= APIS[api].flexible_from:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def nothing_is_answered_before_the_login(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    begun = request(HANDSHAKE, 1, mechanism=_SCRAM)
    for before in (b"", begun):
        for api in APIS.values():
            if api.key in _OPEN:
                continue
            with secured.peer() as peer:
                peer.send(before + _frame(api.key, api.version_max, b"\0" * 64))
                if before:
                    peer.answer(5)
                answer = peer.answer(2)
            abuse.expect(answer is None, f"{api.name} is answered before the login")
    for path in _PATHS:
        answered = secured.ask("GET", path)
        abuse.expect(answered.status == 401, f"{path} is answered: {answered.status}")
    ready = secured.ask("GET", "/readyz")
    abuse.expect(set(ready.json()) == {"ready"}, f"/readyz tells strangers {ready.text[:100]}")


def what_comes_before_a_login_is_small(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    for size in (_FRAME_MAX + 1, 8 << 20, 100 << 20, 2**31 - 1, -1):
        with secured.peer() as peer:
            peer.send(struct.pack(">i", size) + b"\0\x24\0\2")
            abuse.expect(peer.is_closed(5), f"a frame of {size} bytes: the connection stays open")
    peers = [secured.peer() for _ in range(200 if abuse.is_long else 80)]
    for peer in peers:
        peer.send(struct.pack(">i", 16_000) + b"\0\x24\0\2" + b"x" * 15_000)
    answered = secured.ask("GET", "/v1/topics", basic(ADMIN))
    abuse.expect(answered.status == 200, "a user is not served beside connections without a login")
    for peer in peers:
        peer.close()
    large = b"n,,n=admin,r=" + b"a" * 100_000
    for token in (large, b"\xff" * 9_000, b""):
        code = _login_code(secured, _SCRAM, token)
        abuse.expect(code in {BAD_CREDENTIALS, None}, f"a token of {len(token)} bytes: {code}")


def _login_code(secured: Secured, mechanism: str, token: bytes) -> int | None:
    """The code of the answer to a first token; None: the connection was closed."""
    found = _first(secured, mechanism, token)
    return None if found is None else int(found.error_code)


def _first(secured: Secured, mechanism: str, token: bytes) -> Any | None:
    """The answer to a first token."""
    with secured.peer() as peer:
        peer.send(request(HANDSHAKE, 1, mechanism=mechanism))
        answer = peer.answer()
        if answer is None or int(answer_of(HANDSHAKE, 1, answer, 1).error_code):
            return None
        peer.send(request(AUTHENTICATE, 1, auth_bytes=token))
        answer = peer.answer()
    return None if answer is None else answer_of(AUTHENTICATE, 1, answer, 1)


def _as_admin(secured: Secured, api: int, version: int, **values: Any) -> Any | None:
    with secured.logged_in(ADMIN) as peer:
        peer.send(request(api, version, **values))
        answer = peer.answer()
    return None if answer is None else answer_of(api, version, answer, 1)


def scram_is_neither_weakened_nor_made_to_compute(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    for token in (
        b"y,,n=admin,r=abc",
        b"p=tls-unique,,n=admin,r=abc",
        b"n,a=root,n=admin,r=abc",
        b"n,,m=x,n=admin,r=abc",
    ):
        code = _login_code(secured, _SCRAM, token)
        abuse.expect(code in {BAD_CREDENTIALS, None}, f"{token[:20]!r} is taken: {code}")
    weaker = _first(secured, "SCRAM-SHA-256", b"n,,n=admin,r=abc")
    # The inter-broker listener takes it for names of helpers, and fails for all others.
    is_refused = weaker is None or int(weaker.error_code) == BAD_CREDENTIALS
    abuse.expect(is_refused, "a mechanism that is not enabled begins a login")
    for user in (ADMIN, "nobody"):
        found = _first(secured, _SCRAM, f"n,,n={user},r=abc".encode())
        text = b"" if found is None else bytes(found.auth_bytes)
        count = int(text.rpartition(b",i=")[2] or 0)
        abuse.expect(4_096 <= count <= 16_384, f"{user} is asked for {count} iterations")
    for iterations in (-1, 0, 1, 4_095, 16_385, 2**31 - 1):
        change = {
            "name": "weak",
            "mechanism": 2,
            "iterations": iterations,
            "salt": b"salt",
            "salted_password": b"x" * 64,
        }
        done = _as_admin(secured, ALTER_SCRAM, 0, deletions=[], upsertions=[change])
        code = None if done is None else int(done.results[0].error_code)
        abuse.expect(code == BAD_ITERATIONS, f"{iterations} iterations are stored: code {code}")


def _claims(**other: Any) -> dict[str, Any]:
    now_s = SystemClock().now_ms() // 1_000
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": ADMIN, "iat": now_s, "exp": now_s + 600}
    return {name: value for name, value in (made | other).items() if value is not None}


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def forged_tokens_log_nobody_in(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    public = KEY.as_pem(private=False)
    signed_by_public = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{_part(_claims())}"
    mac = hmac.digest(public, signed_by_public.encode(), hashlib.sha256)
    confused = f"{signed_by_public}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"
    header = {"alg": "RS256", "kid": "one"}
    good = jwt.encode(header, _claims(), KEY)
    head, _, signature = good.split(".")
    now_s = SystemClock().now_ms() // 1_000
    forged = {
        "alg none": f"{_part({'alg': 'none'})}.{_part(_claims())}.",
        "alg None": f"{_part({'alg': 'None', 'kid': 'one'})}.{_part(_claims())}.",
        "the public key as a secret": confused,
        "no signature": f"{head}.{_part(_claims())}.",
        "another payload": f"{head}.{_part(_claims(sub='root'))}.{signature}",
        "no expiry": jwt.encode(header, _claims(exp=None), KEY),
        "expired": jwt.encode(header, _claims(exp=now_s - 3_600), KEY),
        "another issuer": jwt.encode(header, _claims(iss="https://evil.example"), KEY),
        "another audience": jwt.encode(header, _claims(aud="others"), KEY),
        "no audience": jwt.encode(header, _claims(aud=None), KEY),
        "another key's id": jwt.encode(header | {"kid": "../one"}, _claims(), KEY),
    }
    for what, token in forged.items():
        answer = secured.ask("GET", "/v1/topics", {"Authorization": f"Bearer {token}"})
        abuse.expect(answer.status == 401, f"a token with {what} logs in: {answer.status}")
    answer = secured.ask("GET", "/v1/topics", {"Authorization": f"Bearer {good}"})
    abuse.expect(answer.status == 200, f"a good token is refused: {answer.status}")


def rules_are_of_one_name_alone(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    names = ["a.b", "a_b", "A.B", "a.bc", "a.", "team-x", "team", "Team-x", "xteam-x"]
    for name in names:
        secured.make(name)
    rule = {
        "resource_type": 2,
        "principal": f"User:{MALLORY}",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    rules = [
        rule | {"resource_name": "a.b", "resource_pattern_type": 3},
        rule | {"resource_name": "team-", "resource_pattern_type": 4},
    ]
    _as_admin(secured, CREATE_ACLS, 1, creations=rules)
    answer = secured.ask("GET", "/v1/topics?limit=1000", basic(MALLORY))
    seen = {one["name"] for one in answer.json().get("topics", ())}
    abuse.expect(seen == {"a.b", "team-x"}, f"rules for a.b and team-* show {sorted(seen)}")
    for name in names:
        path = f"/v1/topics/{name}/records?partition=0"
        status = secured.ask("GET", path, basic(MALLORY)).status
        wanted = 200 if name in {"a.b", "team-x"} else 403
        abuse.expect(status == wanted, f"{name} is answered with {status} instead of {wanted}")


def errors_do_not_tell_what_exists(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    secured.make("hidden")
    wrong = [
        secured.ask("GET", "/v1/topics", basic(user, "wrong")) for user in (ADMIN, "nobody", "x")
    ]
    told = {(one.status, one.text) for one in wrong}
    abuse.expect(len(told) == 1, f"a wrong password and no user differ: {told}")
    pages = {
        secured.ask("POST", "/v1/session", None, {"user": user, "password": "wrong"}).text
        for user in (ADMIN, "nobody")
    }
    abuse.expect(len(pages) == 1, f"sign-ins tell users apart: {pages}")
    for user in (ADMIN, "nobody"):
        salts = set()
        for _ in range(2):
            found = _first(secured, _SCRAM, f"n,,n={user},r=abc".encode())
            text = "" if found is None else bytes(found.auth_bytes).decode()
            salts.add(text.partition(",s=")[2])
        abuse.expect(len(salts) == 1, f"the salt of {user} changes: users can be told apart")
        count = "".join(salts).rpartition(",i=")[2]
        abuse.expect(count == str(ITERATIONS), f"{user} is asked for {count} iterations")
    paths = "/v1/topics/{}", "/v1/topics/{}/records?partition=0", "/v1/topics/{}/config"
    for path in paths:
        both = [
            secured.ask("GET", path.format(name), basic(MALLORY)) for name in ("hidden", "absent")
        ]
        texts = {one.text.replace("absent", "hidden") for one in both}
        abuse.expect(len(texts) == 1, f"{path}: topics that exist are told apart: {texts}")


def sessions_are_new_and_end(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    first = secured.sign_in()
    name = first.cookie.partition("=")[0]
    planted = f"{name}={'A' * 64}"
    second = secured.sign_in(Cookie=planted)
    abuse.expect(second.status == 200, f"a user cannot sign in: {second.status}")
    abuse.expect(planted != second.cookie, "a sign-in keeps the session that was planted")
    abuse.expect(first.cookie != second.cookie, "two sign-ins have the same session")
    status = secured.ask("GET", "/v1/topics", {"Cookie": planted}).status
    abuse.expect(status == 401, f"a planted session is accepted: {status}")
    flags = first.headers.get("set-cookie", "").lower()
    is_safe = "httponly" in flags and "samesite=strict" in flags
    abuse.expect(is_safe, f"a cookie's flags are {flags.partition(';')[2]}")
    csrf = {"X-CSRF-Token": str(second.json().get("csrf_token"))}
    secured.ask("DELETE", "/v1/session", {"Cookie": second.cookie, **csrf})
    status = secured.ask("GET", "/v1/topics", {"Cookie": second.cookie}).status
    abuse.expect(status == 401, f"a session still holds after its sign-out: {status}")


def other_sites_cannot_use_a_session(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    page = secured.sign_in()
    csrf = str(page.json().get("csrf_token"))
    mine = {"Cookie": page.cookie, "X-CSRF-Token": csrf}
    body = {"name": "forged"}
    for foreign in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        for method in ("POST", "GET"):
            sent = body if method == "POST" else None
            status = secured.ask(method, "/v1/topics", mine | foreign, sent).status
            abuse.expect(status == 403, f"a page of another site ({foreign}) gets {status}")
    for without in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "x" * 64}):
        status = secured.ask("POST", "/v1/topics", {"Cookie": page.cookie, **without}, body).status
        abuse.expect(status == 403, f"a change without the page's token gets {status}")
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = secured.ask("OPTIONS", "/v1/topics", preflight)
    allowed = [name for name in answer.headers if name.startswith("access-control-")]
    abuse.expect(not allowed, f"another site is allowed to ask: {allowed}")


def headers_do_not_smuggle_a_login(abuse: Abuse) -> None:
    secured = Secured.of(abuse)
    given = basic(ADMIN)["Authorization"]
    for name in (
        "X-Forwarded-User",
        "X-Remote-User",
        "X-Forwarded-Client-Cert",
        "X-SSL-Client-DN",
        "Remote-User",
        "Proxy-Authorization",
        "X-Authorization",
        "Authorization_",
    ):
        for value in (ADMIN, f"CN={ADMIN}", given):
            status = secured.ask("GET", "/v1/topics", {name: value}).status
            abuse.expect(status == 401, f"{name} logs in: {status}")
    host = b"Host: localhost\r\n"
    field = f"Authorization: {given}\r\n".encode()
    raw = {
        "a space before the colon": b"GET /v1/topics HTTP/1.1\r\n" + host
        + field.replace(b":", b" :", 1) + b"\r\n",
        "a trailer": b"POST /v1/topics HTTP/1.1\r\n" + host
        + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"11\r\n" + b'{"name": "carol"}' + b"\r\n0\r\n" + field + b"\r\n",
        "the body of another request": b"POST /v1/session HTTP/1.1\r\n" + host
        + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/topics HTTP/1.1"
        + b"\r\n" + host + field + b"\r\n",
        "two fields": b"GET /v1/topics HTTP/1.1\r\n" + host + field + field + b"\r\n",
    }  # fmt: skip
    for what, data in raw.items():
        answer = secured.raw(data)
        abuse.expect(b" 200 " not in answer[:20], f"{what} logs in: {answer[:60]!r}")
