"""The audit log: denials, failed logins and administrative changes, as lines of JSON.

Invariants: logger `headrace.audit`, one JSON object a line. It names who, from where, what and on
which resource, never contents: no records, no values of settings, no secrets. Bounded: names are
cut, and beyond a rate, of which users have shares, only the number of lines is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.tenant_shares import (
    PLACES_PARTS,
    Held,
    Holder,
    SharedPlaces,
    TenantShares,
)
from headrace.broker.services.audit_lines import (
    CHANGED,
    DENIED,
    LOGIN_FAILED,
    NAME_LENGTH_MAX,
    RESOURCES_MAX,
    AuditLines,
)
from headrace.broker.services.fair_shares import holder_of
from headrace.errors import StorageUnavailable
from headrace.records.tenant_names import written

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headrace.broker.security.authorizer import Operation, ResourceType
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.authorizer import Authorizer
    from headrace.broker.services.tenant_audit import TenantAudit
    from headrace.runtime.clock import Clock

log = logging.getLogger("headrace.audit")

DENIALS_PER_S: Final = 100
CHANGES_PER_S: Final = 1_000
BURST_S: Final = 10
FREQUENT_PER_S: Final = 100
FAILED_LOGINS_PER_S: Final = 20
"""Each has a limit of its own, so that a flood of denials, failed logins, or changes that any
client makes all the time, hides no other change."""
LOGIN_REPEATS_S: Final = 1.0
FREQUENT_REPEATS_S: Final = 60.0
"""Of what programs do all the time and people by hand seldom."""
REPEATED_MAX: Final = 1_000
"""Kinds of lines of which repetitions are counted at a time; users have shares of them."""
FREQUENT: Final = "frequent"
"""Changes with a limit of their own."""
_NS_PER_S: Final = 1_000_000_000


class _Limit:
    """Of the lines of one kind in BURST_S, with shares of users: a client whose requests are
    denied all the time does not hide the denials of others."""

    def __init__(self, rate_per_s: int) -> None:
        self._shares = TenantShares("lines", rate_per_s * BURST_S, "this broker", PLACES_PARTS)
        self._written = Held()
        self._ends_ns = 0
        self.omitted_count = 0
        """Since the last line."""

    def take(self, holder: Holder, now_ns: int) -> bool:
        """Whether there may be a line about what `holder` did now."""
        if now_ns >= self._ends_ns:
            self._written, self._ends_ns = Held(), now_ns + BURST_S * _NS_PER_S
        if self._shares.excess_of(holder, self._written):
            self.omitted_count += 1
            return False
        self._written.add(holder)
        return True


class Audit:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        lines: AuditLines | None = None,
        authorizer: Authorizer | None = None,
        tenants: TenantAudit | None = None,
    ) -> None:
        """`lines`: where they go besides the log file; those about `tenants` also to these."""
        self._clock = clock
        self._authorizer = authorizer
        self.lines = lines
        self._tenants = tenants
        self._limits = {
            limit: _Limit(rate)
            for limit, rate in (
                (DENIED, DENIALS_PER_S),
                (CHANGED, CHANGES_PER_S),
                (FREQUENT, FREQUENT_PER_S),
                (LOGIN_FAILED, FAILED_LOGINS_PER_S),
            )
        }
        self._repeats: dict[Hashable, int] = {}
        """How often what was written of late has happened again."""
        self._repeating = SharedPlaces("kinds of lines", REPEATED_MAX)
        self.denied_total = 0
        self.changed_total = 0

    def denied(
        self,
        session: ClientSession,
        operation: Operation,
        kind: ResourceType,
        name: str,
        request: str,
    ) -> None:
        """A request lacked a right."""
        self.denied_total += 1
        resource = f"{kind.name}:{self._written(name)[:NAME_LENGTH_MAX]}"
        fields = {"operation": operation.name, "resource": resource}
        self._write(session, request, DENIED, [name], event=DENIED, **fields)

    def changed(
        self,
        session: ClientSession,
        request: str,
        resources: Sequence[str | tuple[str, ...]],
        failed_count: int,
    ) -> None:
        """A client has changed topics, groups, settings, rights or the like. A resource is a name,
        or a text in parts, of which some are names."""
        named = self._named(resources)
        self._changed(session, request, named, resources, len(resources), failed_count)

    def _named(self, resources: Sequence[str | tuple[str, ...]]) -> Sequence[str]:
        """What a line has of them."""
        return [
            "".join(map(self._written, (one,) if isinstance(one, str) else one))[:NAME_LENGTH_MAX]
            for one in resources[:RESOURCES_MAX]
        ]

    def _changed(
        self,
        session: ClientSession,
        request: str,
        named: Sequence[str],
        resources: Sequence[str | tuple[str, ...]],
        count: int,
        failed_count: int,
        *,
        limit: str = CHANGED,
        **repeated: int,
    ) -> None:
        self.changed_total += 1
        more: dict[str, Any] = {"failed": failed_count} if failed_count else {}
        more |= repeated
        if count > len(named):
            more["further"] = count - len(named)
        self._write(session, request, limit, resources, event=CHANGED, resources=named, **more)

    def login_failed(self, session: ClientSession, user: str, mechanism: str) -> None:
        """A client did not prove who it is. `user`: as it said, or empty. Of one address and user
        there are at most two lines a second."""
        named = user[:NAME_LENGTH_MAX]
        fields = {"event": LOGIN_FAILED, "user": named, "mechanism": mechanism}
        write = partial(self._write, session, "login", LOGIN_FAILED, [named], **fields)
        address = client_address(session.client_host)
        key = "login", address, session.place, named, mechanism
        self._once(session, key, LOGIN_REPEATS_S, write)

    def changed_frequently(
        self,
        session: ClientSession,
        request: str,
        resources: Sequence[str | tuple[str, ...]],
        failed_count: int,
    ) -> None:
        """A change that a program makes all the time, and a person by hand: commits of offsets by
        no member of the group, which tools make to reset it, and messages that are settled."""
        named, count = self._named(resources), len(resources)
        fields = session, request, named, _cut(resources), count, failed_count
        key = session.principal, session.client_host, request, count, *named
        write = partial(self._changed, *fields, limit=FREQUENT)
        self._once(session, key, FREQUENT_REPEATS_S, write)

    def _once(
        self, session: ClientSession, key: Hashable, period_s: float, write: Callable[..., None]
    ) -> None:
        """Write a line, and after the period a second one with the number of repetitions, unless
        those of too many lines are counted: each is a line then."""
        if key in self._repeats:
            self._repeats[key] += 1
            return
        write()
        with suppress(StorageUnavailable):
            free = self._repeating.take(holder_of(session, self._authorizer))
            self._repeats[key] = 0
            asyncio.get_running_loop().call_later(period_s, self._end_repeats, key, write, free)

    def _end_repeats(
        self, key: Hashable, write: Callable[..., None], free: Callable[[], None]
    ) -> None:
        free()
        repeated = self._repeats.pop(key)
        if repeated:
            write(repeated=repeated)

    def _written(self, name: str) -> str:
        """A name as operators write it."""
        is_key = self._authorizer is not None and self._authorizer.has_tenants
        return written(name) if is_key else name

    def _write(
        self,
        session: ClientSession,
        request: str,
        limit: str,
        names: Sequence[str | tuple[str, ...]],
        event: str,
        **fields: Any,
    ) -> None:
        """`names`: the keys of what the line is about."""
        limited = self._limits[limit]
        if not limited.take(holder_of(session, self._authorizer), self._clock.now_ns()):
            return
        if limited.omitted_count:
            fields["omitted_before"] = limited.omitted_count
            limited.omitted_count = 0
        line = {
            "timestamp_ms": self._clock.now_ms(),
            "event": event,
            "principal": self._written(str(session.principal or ""))[:NAME_LENGTH_MAX],
            "host": session.client_host,
            "listener": session.listener,
            "client_id": session.client_id[:NAME_LENGTH_MAX],
            "request": request,
            **fields,
        }
        text = json.dumps(line, separators=(",", ":"))
        log.info("%s", text)
        if self.lines is not None:
            self.lines.put(text)
        if self._tenants is not None:
            self._tenants.note(session, line, names)


def _cut(resources: Sequence[str | tuple[str, ...]]) -> Sequence[str | tuple[str, ...]]:
    """What is kept of them for a time: names may be long, and many."""
    return [
        one[:NAME_LENGTH_MAX]
        if isinstance(one, str)
        else tuple(part[:NAME_LENGTH_MAX] for part in one)
        for one in resources[:RESOURCES_MAX]
    ]
