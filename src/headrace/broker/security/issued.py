"""Credentials that brokers issue, and that end: stored once, known to every broker.

Invariants: knows ids and facts, no secrets. An id is random and used once: one that was revoked
here stays unknown even if an older read of it arrives later. One that has expired does not exist.
Bounded in all, and by tenant (`tenant_shares`). What it needs to hold beyond its expiry (its user
still exists ...) is the kind's own, which `has_ended` says.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import USER
from headrace.errors import (
    HeadraceError,
    PolicyViolation,
    VersionConflict,
)
from headrace.metadata.changes import change_fact
from headrace.metadata.decoding import decode_fact
from headrace.metadata.issued_facts import IssuedFact
from headrace.metadata.store import ABSENT, ANY, MetadataEntry
from headrace.records.tenant_names import DEFAULT
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.security.tenant_shares import TenantShares
    from headrace.broker.security.tenants import Tenants
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

REVOKED_MAX: Final = 10_000
"""Ids that are remembered as revoked: an outdated read arrives within seconds."""
SWEEP_MAX: Final = 1_000
"""Credentials deleted in one sweep."""


class IssuedCredentials:
    """The credentials of one kind."""

    def __init__(
        self,
        metadata: MetadataStore,
        prefix: str,
        clock: Clock,
        shares: TenantShares,
        tenants: Tenants | None,
        has_ended: Callable[[IssuedFact], bool],
    ) -> None:
        """`tenants`: whose principals' credentials are counted together; None: there are none."""
        self._metadata = metadata
        self.prefix = prefix
        self._clock = clock
        self._shares = shares
        self._tenants = tenants
        self._counts: Counter[str] | None = None
        """By tenant; None: to be counted, as principals may be of other tenants now."""
        if tenants is not None:
            tenants.on_change(self._forget_counts)
        self._has_ended = has_ended
        self._facts: dict[str, IssuedFact] = {}
        self._versions: dict[str, int] = {}
        self._of_owner: dict[tuple[str, str], dict[str, None]] = {}
        """Ids by owner, the oldest first."""
        self._revoked: dict[str, None] = {}
        self._ended: dict[str, None] = {}
        """Those of them that are still stored."""
        self._changing = FairLock()
        self._listeners: list[Callable[[str, IssuedFact | None], None]] = []

    def __len__(self) -> int:
        return len(self._facts)

    def on_change(self, listener: Callable[[str, IssuedFact | None], None]) -> None:
        """Call `listener` with an id after each change; None: it has been revoked or deleted."""
        self._listeners.append(listener)

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a key. Raises DataCorrupt, FormatUnsupported."""
        id_ = key.removeprefix(self.prefix)
        if entry is None:
            self._forget(id_)
        elif id_ not in self._revoked and entry.version > self._versions.get(id_, ABSENT):
            fact = decode_fact(IssuedFact, entry)
            self._forget(id_, is_replaced=True)
            self._facts[id_] = fact
            self._versions[id_] = entry.version
            self._of_owner.setdefault((fact.owner_type, fact.owner), {})[id_] = None
            self._count(fact, 1)
            self._notify(id_, fact)

    def _forget(self, id_: str, *, is_replaced: bool = False) -> None:
        self._versions.pop(id_, None)
        fact = self._facts.pop(id_, None)
        if fact is None:
            return
        self._count(fact, -1)
        owner = fact.owner_type, fact.owner
        ids = self._of_owner[owner]
        del ids[id_]
        if not ids:
            del self._of_owner[owner]
        if not is_replaced:
            self._notify(id_, None)

    def _notify(self, id_: str, fact: IssuedFact | None) -> None:
        for listener in self._listeners:
            listener(id_, fact)

    def find(self, id_: str) -> IssuedFact | None:
        """A credential that holds now; None: there is none."""
        fact = self._facts.get(id_)
        if fact is None or self._clock.now_ms() >= fact.expires_ms or self._has_ended(fact):
            return None
        return fact

    async def fetch(self, id_: str) -> IssuedFact | None:
        """As `find`, of a credential that another broker may have issued just now: only for ids
        that are known to be a broker's, because it may read the store. Raises
        MetadataUnavailable."""
        if id_ not in self._facts and id_ not in self._revoked:
            key = self.prefix + id_
            entry = await self._metadata.get(key)
            if entry is not None:
                self.apply(key, entry)
        return self.find(id_)

    def all(self) -> Iterator[tuple[str, IssuedFact]]:
        """(id, credential) of those that hold now, by id."""
        for id_ in sorted(self._facts):
            fact = self.find(id_)
            if fact is not None:
                yield id_, fact

    def of_owner(self, kind: str, name: str) -> list[str]:
        """The ids of an owner's credentials, the oldest first."""
        return list(self._of_owner.get((kind, name), ()))

    def _forget_counts(self) -> None:
        self._counts = None

    def _count(self, fact: IssuedFact, step: int) -> None:
        if self._counts is not None:
            self._counts[self._tenant(fact)] += step

    def _tenant(self, fact: IssuedFact) -> str:
        tenants = self._tenants
        return DEFAULT if tenants is None else tenants.of(f"{fact.owner_type}:{fact.owner}")

    def _excess(self, fact: IssuedFact) -> str:
        """Whose limit a further credential would exceed; "": none."""
        if self._counts is None:
            self._counts = Counter(map(self._tenant, self._facts.values()))
        return self._shares.excess(self._tenant(fact), self._counts)

    async def check_room(self, fact: IssuedFact) -> None:
        """Raise PolicyViolation if there can be no further credential like this."""
        if self._excess(fact):
            await self.sweep()
        if excess := self._excess(fact):
            raise PolicyViolation(
                f"{excess}; nothing was issued: revoke some, or wait until they expire"
            )

    async def issue(self, id_: str, fact: IssuedFact) -> None:
        """Store a new credential. Raises PolicyViolation, MetadataUnavailable."""
        await self.check_room(fact)
        key, value = self.prefix + id_, fact.encode()
        version = await self._metadata.put(key, value, ABSENT)
        self.apply(key, MetadataEntry(key, value, version))

    async def change(self, id_: str, change: Callable[[IssuedFact], None]) -> IssuedFact | None:
        """Change a credential; None: it does not exist. Raises what `change` raises, and
        MetadataUnavailable."""
        key = self.prefix + id_
        fact: IssuedFact | None = None

        def changed(entry: MetadataEntry | None) -> bytes | None:
            nonlocal fact
            fact = None
            if entry is None or id_ in self._revoked:
                return None
            fact = decode_fact(IssuedFact, entry)
            change(fact)
            return fact.encode()

        async with self._changing:
            stored = await change_fact(self._metadata, key, "the credential", changed)
            if stored is not None:
                self.apply(key, stored)
        return fact

    async def revoke(self, id_: str) -> bool:
        """Delete a credential; whether it existed here. Raises MetadataUnavailable."""
        existed = id_ in self._facts
        self._note_revoked(id_)  # at once, whatever becomes of the store
        try:
            with suppress(VersionConflict):  # it is gone
                await self._metadata.delete(self.prefix + id_, ANY)
        except HeadraceError:
            self._ended[id_] = None  # it is still stored: the next sweep deletes it
            raise
        self._ended.pop(id_, None)
        return existed

    def end_of_user(self, user: str) -> bool:
        """A user has changed: end what no longer holds, for good, as another user may get the name.
        Returns whether there was anything, which the next sweep deletes."""
        ended = [id_ for id_ in self.of_owner(USER, user) if self._has_ended(self._facts[id_])]
        for id_ in ended:
            self._ended[id_] = None
            self._note_revoked(id_)
        return bool(ended)

    def _note_revoked(self, id_: str) -> None:
        while len(self._revoked) >= REVOKED_MAX:
            del self._revoked[next(iter(self._revoked))]
        self._revoked[id_] = None
        self._forget(id_)

    async def sweep(self) -> None:
        """Delete credentials that have expired or ended. Raises MetadataUnavailable."""
        now_ms = self._clock.now_ms()
        ended = [*self._ended] + [
            id_
            for id_, fact in self._facts.items()
            if now_ms >= fact.expires_ms or self._has_ended(fact)
        ]
        for id_ in ended[:SWEEP_MAX]:
            await self.revoke(id_)
