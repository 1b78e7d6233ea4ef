"""An issuer of tokens, as librdkafka's test 0126 expects it: three addresses, one for each case."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from tests.integration.test_sasl import AUDIENCE, ISSUER, KEY

LIFE_S = {"/valid": 10, "/expired": -60}
"""Of the tokens of an address. Those that are valid are refreshed during a test."""
METADATA = {"api-version", "resource", "client_id"}
"""What a request of Azure's kind (GET) must have."""


class _Request(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = _single(urlsplit(self.path).query)
        self._answer(set(asked) >= METADATA)

    def do_POST(self) -> None:
        asked = _single(self.rfile.read(int(self.headers["Content-Length"])).decode())
        is_granted = asked.get("scope") != "invalid_scope"
        if "assertion" in asked:
            is_granted = is_granted and _is_signed(asked["assertion"])
        self._answer(is_granted)

    def _answer(self, is_granted: bool) -> None:
        body = {"access_token": _token(urlsplit(self.path).path), "token_type": "Bearer"}
        data = json.dumps(body if is_granted else {"error": "invalid_request"}).encode()
        self.send_response(200 if is_granted else 400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _single(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _is_signed(assertion: str) -> bool:
    try:
        jwt.decode(assertion, KEY, algorithms=["RS256"])
    except JoseError:
        return False
    return True


def _token(path: str) -> str:
    if path not in LIFE_S:
        return "no.token.at_all"
    now_s = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "testuser", "client_id": "client_id"}
    times = {"iat": now_s - 300, "exp": now_s + LIFE_S[path]}
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims | times, KEY)


class TokenServer:
    """It serves until it is closed."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Request)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
