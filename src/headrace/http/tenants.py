"""Tenants over HTTP: listed, created, changed and deleted.

Invariants: which tenant a principal is of is kept by `broker/security/tenants`; without an
authorizer everything here is refused. A tenant that has topics, groups or principals is deleted
only if that is asked for in so many words, and what it has stays then: super users see it, and a
tenant of the same name would have it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.tenants import ACCESS, PRINCIPAL_LENGTH_MAX, PRINCIPALS_MAX, RULES
from headrace.broker.services.topic_shares import TopicShares
from headrace.coordination.quotas.tenant_limits import GROUPS, LIMITS, TOPICS, WHEN_FULL
from headrace.errors import BrokerUnreachable, SecurityDisabled
from headrace.http.operations import (
    DRY_RUN,
    INT64_MAX,
    PAGE,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    page,
    text,
)
from headrace.http.problems import Contradiction
from headrace.metadata.followed_facts import CLOSED_TENANTS
from headrace.records.tenant_names import TENANT, prefix_of, tenant_of

if TYPE_CHECKING:
    from headrace.broker.security.tenants import Tenants
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

_PATH: Final = "/v1/tenants"
_NAME: Final = text(32, 1, pattern=f"^{TENANT}$")
_PRINCIPALS: Final = listing(
    text(PRINCIPAL_LENGTH_MAX, 3, pattern=r"^[^:]+:[\s\S]+$", description="User:alice"),
    PRINCIPALS_MAX,
)
_LIMITS: Final = fields(
    (), **{name: {"oneOf": [integer(1, INT64_MAX), {"type": "null"}]} for name in LIMITS}
) | {"description": "Of all brokers together; null removes one."}

_AUDIT_TOPIC: Final = text(249, 0) | {
    "description": "The tenant's topic that gets the lines of the audit log about the tenant. It is"
    " created if it does not exist. Empty: none."
}


class TenantOperations:
    """The operations on tenants."""

    def __init__(self, services: Services) -> None:
        self._services = services
        one = f"{_PATH}/{{tenant}}"
        named: dict[str, Schema] = {"tenant": _NAME}
        changing = named | {"dry_run": DRY_RUN}
        force: Schema = {
            "type": "boolean",
            "description": "Delete it although it has topics, groups, principals or users."
            " They stay.",
        }
        when_full: Schema = {
            "enum": [*WHEN_FULL],
            "description": "What happens once it stores all of stored_bytes.",
        }
        access: Schema = {
            "enum": [*ACCESS],
            "description": "What its principals may do with its topics, groups and transactional"
            " ids: everything (all), or what rules about these names allow (rules).",
        }
        move = _PRINCIPALS | {"description": "Added, and removed from their tenants."}
        change = fields(
            (), add=_PRINCIPALS, move=move, remove=_PRINCIPALS, limits=_LIMITS, when_full=when_full,
            access=access, audit_topic=_AUDIT_TOPIC,
        )  # fmt: skip
        change |= {"minProperties": 1}
        self.operations = [
            Operation("GET", _PATH, "listTenants", "List tenants and their principals.",
                      self._list, PAGE),
            Operation("POST", _PATH, "createTenant", "Create a tenant. One that exists stays.",
                      self._create, {"dry_run": DRY_RUN},
                      fields(("name",), name=_NAME, principals=_PRINCIPALS, access=access)),
            Operation("GET", one, "getTenant", "Get a tenant, its principals and what it has.",
                      self._get, named),
            Operation("PATCH", one, "changeTenant",
                      "Add principals to a tenant, move or remove others, and set limits.",
                      self._change, changing, change),
            Operation("DELETE", one, "deleteTenant",
                      "Delete a tenant without topics, groups and principals.",
                      self._delete, changing | {"force": force}),
        ]  # fmt: skip

    def _tenants(self) -> Tenants:
        """Raises SecurityDisabled."""
        if self._services.access is None:
            raise SecurityDisabled("no authorizer is configured: there are no tenants")
        return self._services.access.tenants

    async def _list(self, call: Call) -> Json:
        tenants = self._tenants()
        answer = page([{"name": name} for name in tenants.names()], "name", call, "tenants")
        answer["tenants"] = [_shown(tenants, one["name"]) for one in answer["tenants"]]
        return answer

    async def _get(self, call: Call) -> Json:
        name, topics = call.path["tenant"], self._services.topics
        shown, held = _shown(self._tenants(), name), topics.held_by(name)
        used = self._services.quotas.of_tenant
        shown["used"] = {
            what: held[what] if what in held else round(used(name, what))
            for what in shown["limits"]
        }
        return shown | {TOPICS: held[TOPICS], GROUPS: await self._group_count(name)}

    async def _group_count(self, tenant: str) -> int:
        """Raises BrokerUnreachable unless all brokers list their groups."""
        listed = await self._services.all_groups.list()
        if listed.failed:
            raise BrokerUnreachable(
                f"broker {min(listed.failed)} does not list its groups now, and may have some of"
                " the tenant's"
            )
        return sum(tenant_of(one.group_id) == tenant for one in listed.groups)

    def _check_known(self, access: str | None) -> None:
        """Raise PolicyViolation while there is a broker that would not know it."""
        if access == RULES:
            effect = "give the tenant's principals everything that no rule denies"
            self._services.cluster.check_known(CLOSED_TENANTS, effect)

    async def _create(self, call: Call) -> Json:
        given, tenants = call.body, self._tenants()
        principals = given.get("principals", [])
        name, access, is_dry_run = given["name"], given.get("access"), call.is_dry_run
        self._check_known(access)
        if not is_dry_run and not tenants.exists(name):  # what was stored while one was deleted
            await TopicShares(self._services).sharing.forget(name)
        existed = await tenants.create(name, principals, access, is_dry_run=is_dry_run)
        return {"tenant": given["name"], "existed": existed, "dry_run": call.is_dry_run}

    async def _change(self, call: Call) -> Json:
        name, added = call.path["tenant"], call.body.get("add", [])
        removed = call.body.get("remove", [])
        moved = call.body.get("move", [])
        both = sorted({*added, *moved} & {*removed})
        if both:
            raise Contradiction(f"{both[0]} is both added and removed: do one of them")
        tenants = self._tenants()
        limits = call.body.get("limits", {})
        modes = call.body.get("when_full"), call.body.get("access")
        self._check_known(modes[1])
        if moved:  # what cannot be moved is refused before anything is changed
            await tenants.move(name, moved, is_dry_run=True)
        audit_topic: str | None = call.body.get("audit_topic")
        if audit_topic is not None:
            await tenants.set_audit_topic(name, audit_topic, is_dry_run=True)
            await self._check_writable(name, audit_topic)
        await tenants.change(name, added, removed, limits, *modes, is_dry_run=call.is_dry_run)
        if audit_topic is not None:
            await tenants.set_audit_topic(name, audit_topic, is_dry_run=call.is_dry_run)
        if moved:
            await tenants.move(name, moved, is_dry_run=call.is_dry_run)
        return {"tenant": _shown(tenants, name), "dry_run": call.is_dry_run}

    async def _check_writable(self, tenant: str, topic: str) -> None:
        """Raise Contradiction if the tenant reads a topic of another one by this name."""
        topics, key = self._services.topics, prefix_of(tenant) + topic
        if topics.find(key) is None and await topics.readable.is_reserved(key):
            raise Contradiction(
                f"{topic} is the name of a topic that another tenant shares with {tenant}, to which"
                " nothing can be written: name another topic; nothing was changed"
            )

    async def _delete(self, call: Call) -> Json:
        name, tenants = call.path["tenant"], self._tenants()
        if tenants.was_deleted(name) and not call.is_dry_run:  # by a request that failed then?
            await self._end_shares(name)
        tenants.require_deletable(name)
        principals, is_forced = tenants.principals(name), call.query.get("force", False)
        held = {
            TOPICS: self._services.topics.held_by(name)[TOPICS],
            GROUPS: await self._group_count(name),
            "principals": len(principals),
            "users": len(self._services.authentication.users.names(prefix_of(name))),
        }
        kept = [f"{count} {what}" for what, count in held.items() if count]
        if kept and not is_forced:
            raise Contradiction(
                f"the tenant has {', '.join(kept)}: delete them first. With force it is deleted"
                " all the same, and what it has stays: super users see it, and its principals have"
                " the rights of the default tenant; nothing was changed"
            )
        if not call.is_dry_run:
            await tenants.delete(name, is_forced=is_forced)  # if it is refused, nothing has changed
            await self._end_shares(name)
        return {"tenant": name, **held, "dry_run": call.is_dry_run}

    async def _end_shares(self, name: str) -> None:
        """What a tenant that was deleted shared and read is shared no longer, also with one of its
        name."""
        sharing = TopicShares(self._services).sharing
        await sharing.forget(name)
        await sharing.forget_reader(name)


def _shown(tenants: Tenants, name: str) -> Json:
    audit_topic = tenants.audit_topic(name)
    return ({"audit_topic": audit_topic} if audit_topic else {}) | {
        "name": name,
        "principals": list(tenants.principals(name)),
        "limits": {what: int(one) for what, one in sorted(tenants.limits(name).items())},
        "when_full": tenants.when_full(name),
        "access": tenants.access(name),
        "in_setting": tenants.is_configured(name),
    }
