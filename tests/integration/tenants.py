"""Tenants whose clients need no login, and users who log in over HTTP."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from tests.integration.broker import Broker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.broker import Place

OPERATOR = "root"
INSIDE = "INSIDE"
"""The listener of brokers, and of users."""
TIMEOUT_S = 60


def of_tenants(*names: str) -> tuple[str, ...]:
    """Options of a broker with INSIDE and a listener for each of these tenants, called like it in
    capitals."""
    protocols = f"{INSIDE}:SASL_PLAINTEXT", *(f"{one.upper()}:PLAINTEXT" for one in names)
    return (
        *("--authorizer", "acl", "--super-users", f"User:{OPERATOR}"),
        *("--http-security-protocol", "SASL_PLAINTEXT"),
        *("--tenants", ";".join(f"{one}=User:{one}" for one in names)),
        *("--listener-security-protocol-map", ",".join(protocols)),
        *(
            part
            for one in names
            for part in ("--listener-setting", f"listener.name.{one}.headrace.tenant={one}")
        ),
    )


def started(folder: Path, *names: str) -> Broker:
    """A broker with these, and the operator."""
    broker = Broker(folder, *of_tenants(*names))
    add_user(OPERATOR, "--data-dir", str(broker.data_dir))
    broker.listen(INSIDE, *(one.upper() for one in names))
    return broker.start()


def add_user(name: str, *where: str) -> None:
    """A user whose password is the name, without a broker: `where` is its metadata."""
    command = [sys.executable, "-m", "headrace", "user", "add", name, "--password-file", "-"]
    done = subprocess.run(
        [*command, *where], input=name, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def answered(
    broker: Broker | Place, method: str, path: str, body: Any = None, user: str = OPERATOR
) -> tuple[int, str]:
    """Status and text of what a broker answers over HTTP to a user."""
    request = urllib.request.Request(
        f"http://{broker.http}{path}", json.dumps(body).encode() if body else None, method=method
    )
    request.add_header("Content-Type", "application/json")
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ask(
    broker: Broker | Place, method: str, path: str, body: Any = None, user: str = OPERATOR
) -> Any:
    """What it answers; it must not refuse."""
    status, text = answered(broker, method, path, body, user)
    assert status < 300, text
    return json.loads(text)


def share(broker: Broker | Place, source: str, name: str, accepting: Broker | None = None) -> None:
    """Have acme share a topic with beta, which accepts it, perhaps at another broker."""
    wanted = {"topic": f"acme/{source}", "reader": "beta"}
    ask(broker, "POST", "/v1/shared-topics", wanted)
    accepted = {"topic": f"beta/{name}", "source": f"acme/{source}"}
    ask(accepting or broker, "POST", "/v1/accepted-topics", accepted)


def unshare(broker: Broker, source: str) -> None:
    """Have acme share it no longer."""
    path = f"/v1/shared-topics/acme%2F{source}/readers/beta"
    assert ask(broker, "DELETE", path)["existed"]
