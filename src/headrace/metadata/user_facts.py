"""Metadata of users: their SCRAM credentials, and the secret that brokers share.

Invariants: no password is stored, only what proves that a client knows one. The secret is as
confidential as the metadata itself. Do not change: stored.

    /users/<name, hex>      UserFact; one without credentials is a user that was removed
    /cluster/broker-secret  BrokerSecretFact
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataCorrupt, MetadataUnavailable, VersionConflict
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact
from headrace.metadata.store import ABSENT, MetadataStore

USERS = "/users/"
SHARED_BY_BROKERS = "/cluster/broker-secret"
SECRET_BYTES = 32
_ATTEMPTS_MAX = 1_000  # each loss means that another writer succeeded


def user_key(name: str) -> str:
    """The key of a user's fact."""
    return USERS + name.encode().hex()


def user_of_key(key: str) -> str:
    """The user in a key under USERS. Raises DataCorrupt."""
    try:
        return bytes.fromhex(key.removeprefix(USERS)).decode()
    except ValueError as error:
        raise DataCorrupt(f"{key!r} is not the key of a user: remove it", key=key) from error


@dataclass(slots=True)
class CredentialFact(StoredFact):
    """One SCRAM credential; bytes are in base64."""

    mechanism: str
    salt: str
    stored_key: str
    server_key: str
    iterations: int
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: FactReader) -> CredentialFact:
        """Decode one JSON object. Raises DataCorrupt."""
        fact = cls(
            reader.text("mechanism"),
            reader.text("salt"),
            reader.text("stored_key"),
            reader.text("server_key"),
            reader.integer("iterations", 1),
            reader.rest(),
        )
        try:
            for text in (fact.salt, fact.stored_key, fact.server_key):
                base64.b64decode(text, validate=True)
        except binascii.Error:
            raise reader.corrupt("has malformed base64") from None
        return fact


@dataclass(slots=True)
class UserFact(StoredFact):
    """A user. Kept without credentials for a while when it is removed (`followed_facts`)."""

    credentials: list[CredentialFact] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> UserFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("user", value)
        found = reader.objects("credentials", "credential")
        return cls([CredentialFact.read(item) for item in found], reader.rest())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with the fact."""
        return not self.credentials and not self.unknown


@dataclass(slots=True)
class BrokerSecretFact(StoredFact):
    """What a broker has to know to be believed to be one: 32 random bytes in base64."""

    secret: str
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> BrokerSecretFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("broker secret", value)
        fact = cls(reader.text("secret"), reader.rest())
        try:
            size = len(base64.b64decode(fact.secret, validate=True))
        except binascii.Error:
            size = 0
        if size != SECRET_BYTES:
            raise reader.corrupt("is malformed")
        return fact


async def ensure_broker_secret(store: MetadataStore, new: bytes) -> bytes:
    """The secret that brokers share; `new` becomes it if there is none.

    Raises MetadataUnavailable, DataCorrupt.
    """
    assert len(new) == SECRET_BYTES
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(SHARED_BY_BROKERS)
        if entry is not None:
            return base64.b64decode(BrokerSecretFact.decode(entry.value).secret)
        fact = BrokerSecretFact(base64.b64encode(new).decode())
        try:
            await store.put(SHARED_BY_BROKERS, fact.encode(), ABSENT)
        except VersionConflict:
            continue
        return new
    raise MetadataUnavailable("the brokers' secret keeps changing: check the metadata store")
