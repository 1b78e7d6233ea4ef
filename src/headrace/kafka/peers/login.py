"""Logs this broker in at another one, by the secret that the brokers of a cluster share.

Invariants: a broker that authenticates its own clients talks to no peer that does not prove that it
knows the secret, too. A refusal is an OSError, as is every other way in which a peer cannot be
reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.broker.security.broker_secret import BROKER_MECHANISM
from headrace.errors import HeadraceError
from headrace.kafka.client.login import ClientLogin, scram_tokens
from headrace.metadata.endpoints import KAFKA
from headrace.runtime.security_protocols import SASL_PLAINTEXT, SASL_SSL

if TYPE_CHECKING:
    from headrace.broker.security.authentication import Authentication
    from headrace.kafka.client.asynchronous import AsyncConnection
    from headrace.metadata.facts import BrokerFact

LogIn = Callable[["AsyncConnection"], Awaitable[None]]


class PeerLogin:
    """See the module."""

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication

    def at(self, broker: BrokerFact) -> LogIn | None:
        """How to log in at a broker; None: it is not asked for."""
        is_asked = any(
            one.face == KAFKA and one.security in {SASL_PLAINTEXT, SASL_SSL}
            for one in broker.endpoints or ()
        )
        return self._log_in if is_asked or self._authentication.is_required else None

    async def _log_in(self, connection: AsyncConnection) -> None:
        """Raises OSError."""
        try:
            scram = await self._authentication.logins.secret.client()
            await connection.log_in(ClientLogin(BROKER_MECHANISM, scram_tokens(scram)))
        except HeadraceError as error:
            connection.abort()
            raise ConnectionAbortedError(f"the login between brokers failed: {error}") from error
