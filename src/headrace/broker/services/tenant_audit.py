"""Audit logs of tenants' own: the lines about a tenant, by its names, in a topic of its.

Invariants: a line is about a tenant if its client is of it, has failed to log in at a place of it,
or is a super user that changed what has a key of it. It has no name of anything else: what is not
certainly the tenant's is left out, and counted. Nothing waits for a line: they wait in queues, of
which each and all together have a bound, and one that finds no room is counted, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import CLUSTER_NAME
from headrace.broker.services.audit_lines import (
    CHANGED,
    DENIED,
    LOGIN_FAILED,
    NAME_LENGTH_MAX,
    RESOURCES_MAX,
    WAITING_MAX,
    AuditLines,
    LineCount,
)
from headrace.records.tenant_names import DEFAULT, USER, has_marks, prefix_of, shown_name, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.access_control import AccessControl

TENANT_WAITING_MAX: Final = 1_000
"""Lines that wait for the topic of one tenant."""
_KEPT: Final = ("timestamp_ms", "event", "host", "client_id", "request", "operation", "mechanism")
"""What a tenant's line has as it is. The names of listeners are the operators'."""
_CHANGE_TENANT: Final = "changeTenant"
"""A request, the first name of which is a tenant's."""
Named = str | tuple[str, ...]
"""A name, or a text in parts, of which some are names."""


class TenantAudit:
    """See the module."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._tenants = access.tenants
        self._lines: dict[tuple[str, str], AuditLines] = {}
        """By tenant and key of its topic, while lines wait."""
        self._count = LineCount(WAITING_MAX)
        self._spawn: Callable[[Coroutine[Any, Any, None], str], None] | None = None
        self._write: Callable[[str, AuditLines], Coroutine[Any, Any, None]] | None = None
        self._has_user: Callable[[str], bool] | None = None
        self._tenants.on_change(self._tenants_changed)

    def begin(
        self,
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        write: Callable[[str, AuditLines], Coroutine[Any, Any, None]],
        has_user: Callable[[str], bool],
    ) -> None:
        """From now on lines are written. `write` writes those that wait for a topic; `has_user`:
        whether there is a user of this name."""
        self._spawn, self._write, self._has_user = spawn, write, has_user
        for place, lines in self._lines.items():
            self._begin_writing(place, lines)

    def note(self, session: ClientSession, line: Mapping[str, Any], names: Sequence[Named]) -> None:
        """Have a line written for the tenant that it is about. `names`: the keys of what it is
        about, of a failed login the user that was named."""
        if not self._tenants.has_audit_topics:
            return
        if line["event"] == LOGIN_FAILED:
            tenant = DEFAULT if session.place is None else session.place.tenant
        else:
            tenant = self._access.tenant(session)
        if self._tenants.audit_topic(tenant):
            self._put(tenant, self._own(tenant, session, line, names))
        elif line["event"] == CHANGED and self._is_operator(session):
            self._note_operators(line, names)

    def _is_operator(self, session: ClientSession) -> bool:
        principal = session.principal
        return principal is not None and not principal.is_broker and self._access.sees_all(session)

    def _own(
        self, tenant: str, session: ClientSession, line: Mapping[str, Any], names: Sequence[Named]
    ) -> dict[str, Any]:
        """A line about what a client of the tenant did."""
        own = {name: line[name] for name in _KEPT if name in line}
        own["principal"] = _name(tenant, str(session.principal or "")) or ""
        if line["event"] == LOGIN_FAILED:
            own["user"] = self._user(tenant, str(names[0]))
        elif line["event"] == DENIED:
            kind = line["resource"].partition(":")[0]
            own["resource"] = f"{kind}:{self._certain(tenant, str(names[0]))}"
        else:  # a client of the tenant names in a change what it has written itself
            shown = [_text(tenant, one) for one in names[:RESOURCES_MAX]]
            own["resources"] = [one for one in shown if one is not None]
            if further := line.get("further", 0) + len(shown) - len(own["resources"]):
                own["further"] = further
        own |= {name: line[name] for name in ("failed", "repeated") if name in line}
        return own

    def _user(self, tenant: str, named: str) -> str:
        """A user that could not log in, if it is the tenant's. No others: operators and people of
        other tenants come to a wrong place, too, and which of them exist is not the tenant's to
        know."""
        user = named.removeprefix(prefix_of(tenant))[:NAME_LENGTH_MAX]
        is_own = self._has_user is not None and self._has_user(prefix_of(tenant) + user)
        return user if is_own or self._tenants.of(USER + user) == tenant else ""

    def _certain(self, tenant: str, name: str) -> str:
        """What was denied may come from what others stored: it is named if it is the tenant's."""
        is_own = _is_of(tenant, name) or name == CLUSTER_NAME or self._tenants.of(name) == tenant
        return (_name(tenant, name) if is_own else None) or ""

    def _note_operators(self, line: Mapping[str, Any], names: Sequence[Named]) -> None:
        """A super user has changed something: each tenant learns what of its own."""
        found: dict[str, list[str]] = {}
        if line["request"] == _CHANGE_TENANT and names:
            found[str(names[0])] = []
        for one in names:
            parts = (one,) if isinstance(one, str) else one
            for tenant in {tenant_of(part.removeprefix(USER)) for part in parts} - {DEFAULT}:
                own = [_name(tenant, part) or "" for part in parts if _is_of(tenant, part)]
                found.setdefault(tenant, []).append(" ".join(own)[:NAME_LENGTH_MAX])
        for tenant, shown in found.items():
            if not self._tenants.audit_topic(tenant):
                continue
            own_line = {name: line[name] for name in ("timestamp_ms", "event", "request")}
            own_line |= {"by_operator": True, "resources": shown[:RESOURCES_MAX]}
            if len(shown) > RESOURCES_MAX:
                own_line["further"] = len(shown) - RESOURCES_MAX
            own_line |= {name: line[name] for name in ("failed", "repeated") if name in line}
            self._put(tenant, own_line)

    # --- writing -----------------------------------------------------------------------------

    def _put(self, tenant: str, line: Mapping[str, Any]) -> None:
        place = tenant, prefix_of(tenant) + self._tenants.audit_topic(tenant)
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = AuditLines(TENANT_WAITING_MAX, self._count)
        lines.put(json.dumps(line, separators=(",", ":")))
        self._begin_writing(place, lines)

    def _begin_writing(self, place: tuple[str, str], lines: AuditLines) -> None:
        if self._spawn is not None and not lines.has_writer:
            lines.has_writer = True
            self._spawn(self._write_all(place, lines), "audit topic of a tenant")

    async def _write_all(self, place: tuple[str, str], lines: AuditLines) -> None:
        assert self._write is not None, "it has begun"
        try:
            await self._write(place[1], lines)
        finally:
            lines.has_writer = False
            if not lines.has_dropped and self._lines.get(place) is lines:
                del self._lines[place]

    def _tenants_changed(self) -> None:
        """Lines that wait for a topic that a tenant no longer has are dropped."""
        for tenant, key in [*self._lines]:
            if prefix_of(tenant) + self._tenants.audit_topic(tenant) != key:
                self._lines.pop((tenant, key)).close()


def _is_of(tenant: str, name: str) -> bool:
    """Whether it is a key of the tenant, or a principal that has one."""
    return tenant_of(name.removeprefix(USER)) == tenant


def _name(tenant: str, name: str) -> str | None:
    """A name as clients of the tenant write it; None: it is another tenant's, or may look so."""
    shown = shown_name(name, tenant)
    return None if shown is None or has_marks(shown) else shown[:NAME_LENGTH_MAX]


def _text(tenant: str, named: Named) -> str | None:
    """The same of a text in parts."""
    parts = [_name(tenant, one) for one in ((named,) if isinstance(named, str) else named)]
    whole = [one for one in parts if one is not None]
    return "".join(whole)[:NAME_LENGTH_MAX] if len(whole) == len(parts) else None
