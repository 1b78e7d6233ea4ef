"""How a command that this broker runs for a client reaches the broker.

Invariants: knows no protocol; stores nothing. Where the inter-broker listener asks for a login, the
command logs in as the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.security.helper_logins import HELPER_MECHANISM
from headrace.runtime.access import MECHANISM, PASSWORD, PROTOCOL, USER
from headrace.runtime.security_protocols import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.security.authentication import Authentication
    from headrace.broker.security.sessions import ClientSession


class HelperListener(NamedTuple):
    """The inter-broker listener, as commands on this machine reach it."""

    security: str = PLAINTEXT
    tls: Callable[[], Mapping[str, str]] = dict
    """Settings of librdkafka for TLS. Raises RequestInvalid."""


class HelperAccess(NamedTuple):
    """What one command is started with."""

    settings: Mapping[str, str]
    """Of librdkafka. May hold secrets."""
    is_of_client: bool
    """Whether the command logs in as the client, and may do what the client may; otherwise it has
    the rights of the clients of that listener."""


def helper_access(
    listener: HelperListener, authentication: Authentication, client: ClientSession
) -> HelperAccess:
    """For a command that is started for `client`. Raises RequestInvalid, AuthenticationFailed."""
    given = dict(listener.tls())
    is_sasl = listener.security in {SASL_PLAINTEXT, SASL_SSL}
    if is_sasl:
        assert client.principal is not None, "HTTP clients have one"
        login = authentication.logins.helpers.issue(client.principal, client.client_host)
        given |= {PROTOCOL: listener.security, MECHANISM: HELPER_MECHANISM}
        given |= {USER: login.user, PASSWORD: login.password}
    return HelperAccess(given, is_of_client=is_sasl)
