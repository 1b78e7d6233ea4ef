"""The kinds of credentials that brokers issue, together.

Invariants: made once for each broker, before the metadata is read; choices only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.security.access_signatures import AccessSignatures
from headrace.broker.security.api_keys import ApiKeys
from headrace.broker.security.browser_sessions import BrowserSessions
from headrace.broker.security.delegation_tokens import DelegationTokens
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.security.broker_secret import BrokerSecret
    from headrace.broker.security.issued import IssuedCredentials
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.security.users import Users
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 60


class Issuers:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        users: Users,
        tenants: Tenants | None,
        secret: BrokerSecret,
        clock: Clock,
        randomness: Randomness,
        config: BrokerConfig,
    ) -> None:
        self._has_to_sweep = asyncio.Event()
        users.on_change(self._user_changed)
        parts = metadata, users, tenants, secret, clock, randomness
        self.sessions = BrowserSessions(*parts, config.browser_session_lifetime_ms)
        self.keys = ApiKeys(*parts)
        self.signatures = AccessSignatures(
            self.keys, clock, config.signature_window_ms, config.signature_offsets_s
        )
        self.tokens = DelegationTokens(*parts, config.token_lifetime_ms_max, config.token_expiry_ms)

    def _user_changed(self, user: str) -> None:
        for kind in self.kinds:
            if kind.end_of_user(user):
                self._has_to_sweep.set()

    @property
    def kinds(self) -> Sequence[IssuedCredentials]:
        """What is stored, by kind."""
        return (self.sessions.issued, self.keys.issued, self.tokens.issued)

    async def run(self) -> None:
        """Delete what has expired, for ever; what ended with a user, at once."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_to_sweep.wait(), SWEEP_INTERVAL_S)
            self._has_to_sweep.clear()
            for kind in self.kinds:
                try:
                    await kind.sweep()
                except HeadraceError as error:  # what has ended is refused all the same
                    log.warning("cannot delete ended credentials (%s): trying later", error)
