"""The login in front of a REST catalog: OAuth2 by client credentials, with tokens that expire."""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Iterator

CREDENTIAL, SCOPE = "headrace:not-to-be-shown", "PRINCIPAL_ROLE:ALL"
TOKEN_PATH = "/v1/oauth/tokens"
LIFE_S = 20


class Login:
    """Which tokens are valid. Like most servers, it exchanges no token for another."""

    def __init__(self) -> None:
        self.count = 0
        """How often somebody has logged in."""
        self.refused: list[str] = []
        self._expires: dict[str, float] = {}

    def token(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """The answer to a request for a token."""
        client, secret = CREDENTIAL.split(":")
        expected = {
            "grant_type": ["client_credentials"],
            "client_id": [client],
            "client_secret": [secret],
            "scope": [SCOPE],
        }
        if form != expected:
            self.refused.append(str(form.get("grant_type")))
            return 400, {"error": "invalid_grant"}
        self.count += 1
        token = f"token-{self.count}-not-to-be-shown"
        self._expires[token] = time.monotonic() + LIFE_S
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": LIFE_S}

    def admits(self, authorization: str) -> bool:
        """Whether it has a token that has not expired."""
        return time.monotonic() < self._expires.get(authorization.removeprefix("Bearer "), 0)


@contextmanager
def login_proxy(target: int) -> Iterator[tuple[int, Login]]:
    """The port of what passes requests on to the port `target` once they have a token."""
    login = Login()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == TOKEN_PATH:
                self.reply(*login.token(parse_qs(body.decode())))
            elif login.admits(self.headers.get("Authorization", "")):
                self.forward(body)
            else:
                error = {"message": "expired", "type": "NotAuthorizedException", "code": 401}
                self.reply(401, {"error": error})

        def do_GET(self) -> None:
            self.do_POST()

        def do_HEAD(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def forward(self, body: bytes) -> None:
            near = http.client.HTTPConnection("127.0.0.1", target, timeout=120)
            try:
                skipped = {"host", "connection", "content-length", "accept-encoding"}
                headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
                near.request(self.command, self.path, body or None, headers)
                answer = near.getresponse()
                self.send(answer.status, answer.read(), answer.headers.get("Content-Type"))
            finally:
                near.close()

        def reply(self, code: int, body: dict[str, Any]) -> None:
            self.send(code, json.dumps(body).encode(), "application/json")

        def send(self, code: int, data: bytes, kind: str | None) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind or "application/json")
            if code != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, login
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
