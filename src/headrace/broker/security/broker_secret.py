"""The secret by which the brokers of a cluster recognise each other.

Invariants: random, kept in the metadata store, and as confidential as the metadata itself: whoever
can read it there could change every topic and user. Brokers log in by SCRAM-SHA-256 with it, so
that it never crosses the network, and a caller knows that the other end is a broker, too. Clients
cannot use it: the mechanism has a name of its own.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from headrace.metadata.user_facts import ensure_broker_secret
from headrace.runtime.scram import SHA_256, ScramClient, ScramCredential, new_credential

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.randomness import Randomness

BROKER_MECHANISM: Final = "HEADRACE-BROKER"
"""Not listed among the enabled mechanisms. Do not change: on the wire."""
_SALT: Final = b"headrace brokers"
"""The password is random, so that its hash needs no salt of its own."""


class BrokerSecret:
    """The secret, read or created when it is first needed."""

    def __init__(self, metadata: MetadataStore, randomness: Randomness, broker_id: int) -> None:
        self._metadata = metadata
        self._randomness = randomness
        self._name = str(broker_id)
        self._secret = b""
        self._credential: ScramCredential | None = None

    async def load(self) -> None:
        """Read or create it. Raises MetadataUnavailable, DataCorrupt."""
        if self._credential is None:
            new = self._randomness.uuid().bytes + self._randomness.uuid().bytes
            self._secret = await ensure_broker_secret(self._metadata, new)
            self._credential = new_credential(SHA_256, self._password, _SALT)

    @property
    def _password(self) -> str:
        return self.derived(b"login").hex()

    def derived(self, use: bytes) -> bytes:
        """A secret for another use. After `load`."""
        assert self._secret, "it is loaded first"
        return hmac.digest(self._secret, use, "sha256")

    @property
    def is_loaded(self) -> bool:
        """Whether secrets can be derived."""
        return self._credential is not None

    def credential(self, _broker: str, is_token: bool) -> tuple[ScramCredential, bool]:
        """The credential of any broker, which has no delegation tokens. After `load`."""
        assert self._credential is not None, "it is loaded first"
        return self._credential, not is_token

    async def client(self) -> ScramClient:
        """This broker's side of a login at another one. Raises MetadataUnavailable, DataCorrupt."""
        await self.load()
        return ScramClient(SHA_256, self._name, self._password, self._randomness.uuid().hex)
