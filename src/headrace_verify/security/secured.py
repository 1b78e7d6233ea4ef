"""A broker that authenticates its clients, beside the one of a run, for the cases about that.

Invariants: one for all cases of a run, started by the first of them, with the same planted bug; it
ends with the run's broker. Nothing of its answers is trusted.
"""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from joserfc.jwk import RSAKey

from headrace_verify.kafka_wire import answer_of
from headrace_verify.real_broker import addresses_in, die_with_us
from headrace_verify.security.asking import request
from headrace_verify.wire.abuse import Peer

if TYPE_CHECKING:
    from headrace_verify.real_broker import RealBroker
    from headrace_verify.wire.abuse import Abuse

ADMIN, PASSWORD = "admin", "canary-of-the-secured-broker"  # of a broker of our own
MALLORY: Final = "mallory"
TRENT: Final = "trent"
TEAM, VICTIM = "TEAM", "victim"
"""A listener that is for one tenant."""
HANDSHAKE, AUTHENTICATE = 17, 36
ISSUER, AUDIENCE = "https://issuer.example", "headrace"
_PROTOCOLS: Final = f"PLAINTEXT:SASL_PLAINTEXT,{TEAM}:SASL_PLAINTEXT"
ITERATIONS: Final = 8_192
"""Of its users: other than by default, so that absent users may be told by it."""
TIMEOUT_S: Final = 20
KEY: Final = RSAKey.generate_key(2048, {"kid": "one"})


class HttpAnswer(NamedTuple):
    """One response."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        """Its body; empty if it is no JSON."""
        try:
            return json.loads(self.text)
        except ValueError:
            return {}

    @property
    def cookie(self) -> str:
        """The cookie that it sets, as a browser sends it."""
        return self.headers.get("set-cookie", "").partition(";")[0]


class Secured:
    """The broker and its users."""

    def __init__(self, abuse: Abuse, broker: RealBroker) -> None:
        self._abuse = abuse
        self.broker = broker

    @classmethod
    def of(cls, abuse: Abuse) -> Secured:
        """The one of this run."""
        keys = abuse.broker.data_dir.parent / "secured-keys.json"
        keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
        options = [
            *("--listener-security-protocol-map", _PROTOCOLS),
            *("--listener-setting", f"listener.name.{TEAM.lower()}.headrace.tenant={VICTIM}"),
            *("--http-security-protocol", "SASL_PLAINTEXT"),
            *("--rocketmq", "127.0.0.1:0", "--rocketmq-security-protocol", "SASL_PLAINTEXT"),
            *("--sasl-enabled-mechanisms", "PLAIN,SCRAM-SHA-512,OAUTHBEARER"),
            *("--sasl-oauthbearer-jwks-endpoint-url", keys.as_uri()),
            *("--sasl-oauthbearer-expected-issuer", ISSUER),
            *("--sasl-oauthbearer-expected-audience", AUDIENCE),
            *("--super-users", f"User:{ADMIN}"),
        ]
        broker = abuse.broker.beside("secured", options, TEAM)
        if broker.pid is None:
            for user in (ADMIN, MALLORY, TRENT):
                _add_user(broker, user)
            broker.start()
        return cls(abuse, broker)

    def peer(self, source: str = "") -> Peer:
        """A connection to its Kafka port. `source`: the address from which it comes."""
        return Peer(self._abuse, self.broker.address, source)

    def web_peer(self) -> Peer:
        """A connection to its HTTP port."""
        return Peer(self._abuse, self.broker.http_address)

    def logged_in(self, user: str) -> Peer:
        """A connection to its Kafka port, after the login of a user."""
        peer = self.peer()
        self._abuse.expect(self.login_code(peer, user) == 0, f"{user} cannot log in")
        return peer

    def at_team(self, user: str) -> tuple[Peer, int | None]:
        """A connection to the tenant's own listener, and the code of the user's login; None: the
        connection was closed."""
        (address,) = addresses_in(self.broker.listeners[TEAM])
        peer = Peer(self._abuse, address)
        return peer, self.login_code(peer, user)

    @staticmethod
    def login_code(peer: Peer, user: str) -> int | None:
        """Log in by PLAIN; as `at_team`."""
        peer.send(request(HANDSHAKE, 1, mechanism="PLAIN"))
        peer.answer()
        peer.send(request(AUTHENTICATE, 0, auth_bytes=f"\0{user}\0{PASSWORD}".encode()))
        answer = peer.answer()
        return None if answer is None else int(answer_of(AUTHENTICATE, 0, answer, 1).error_code)

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None
    ) -> HttpAnswer:
        """An HTTP request; status 0 if there is no answer."""
        connection = http.client.HTTPConnection(*self.broker.http_address, timeout=TIMEOUT_S)
        data = None if body is None else json.dumps(body)
        given = {**(headers or {}), **({"Content-Type": "application/json"} if data else {})}
        self._abuse.checked += 1
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            text = answer.read(1 << 20)
        except (OSError, http.client.HTTPException):
            return HttpAnswer(0, {}, "")
        finally:
            connection.close()
        self._abuse.record_received(text)
        found = {name.lower(): value for name, value in answer.getheaders()}
        return HttpAnswer(answer.status, found, text.decode(errors="replace"))

    def raw(self, data: bytes) -> bytes:
        """What is answered to these bytes on the HTTP port."""
        with self.web_peer() as peer:
            peer.send(data)
            peer.end_sending()
            return peer.receive(1 << 20, 3)

    def sign_in(self, user: str = ADMIN, **headers: str) -> HttpAnswer:
        """Sign a browser in."""
        body = {"user": user, "password": PASSWORD}
        return self.ask("POST", "/v1/session", {"Sec-Fetch-Site": "same-origin", **headers}, body)

    def make(self, topic: str) -> None:
        """Create a topic."""
        self.ask("POST", "/v1/topics", basic(ADMIN), {"name": topic})


def basic(user: str, password: str = PASSWORD) -> dict[str, str]:
    """The header of a user."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def _add_user(broker: RealBroker, user: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "user", "add", user]
    command += ["--password-file", "-", "--data-dir", str(broker.data_dir)]
    command += ["--iterations", str(ITERATIONS)]
    subprocess.run(  # noqa: S603 - our own command
        command,
        input=f"{PASSWORD}\n".encode(),
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=True,
        preexec_fn=die_with_us(),
    )
