"""API keys, administered over HTTP: create, list and revoke them.

Invariants: a client makes keys for itself; for another principal it needs CREATE_TOKENS on that
user, to see them DESCRIBE_TOKENS, as for delegation tokens (KIP-373). A key makes and revokes no
keys, so that one that was stolen cannot outlive its revocation. A secret is in one answer only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse

from headrace.broker.security.acls import NAME_LENGTH_MAX as RESOURCE_LENGTH_MAX
from headrace.broker.security.acls import WILDCARD, Pattern
from headrace.broker.security.api_keys import (
    HTTP,
    KINDS,
    LIFETIME_MS,
    LIFETIME_MS_MAX,
    NAME_LENGTH_MAX,
    RULES_MAX,
    ApiKey,
    NewKey,
    ScopeRule,
)
from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.security.principal import ANONYMOUS, USER, Principal
from headrace.broker.security.tenant_ownership import OF_TENANTS
from headrace.errors import CredentialUnknown, Unauthorized
from headrace.http.acls import PATTERNS, RESOURCES
from headrace.http.connection import LOGIN
from headrace.http.operations import (
    CREATED,
    DRY_RUN,
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

if TYPE_CHECKING:
    from starlette.responses import Response

    from headrace.broker.services.services import Services
    from headrace.broker.services.tenant_view import TenantView
    from headrace.http.logins import HttpLogin

_PATH: Final = "/v1/keys"
_SCOPED: Final = OF_TENANTS | {ResourceType.CLUSTER}
"""What a tenant's client means within the tenant."""
_ID: Final = text(16, 16, pattern="^[0-9a-f]{16}$")
_RESOURCES: Final = [
    name for name, kind in RESOURCES.items() if kind is not ResourceType.DELEGATION_TOKEN
]
_RULE: Final = fields(
    ("operation", "resource", "name"),
    operation={"type": "string", "enum": [one.name for one in Right]},
    resource={"type": "string", "enum": [*_RESOURCES]},
    name=text(RESOURCE_LENGTH_MAX, 1, description="`*` is every name."),
    pattern={"type": "string", "enum": [*PATTERNS], "default": "literal"},
)
_BODY: Final = fields(
    ("name",),
    name=text(NAME_LENGTH_MAX, 1),
    user=text(100, 1, description="The user that it acts as. Default: the client."),
    lifetime_ms=integer(1, LIFETIME_MS_MAX, default=LIFETIME_MS),
    kind={
        "type": "string",
        "enum": [*KINDS],
        "default": HTTP,
        "description": "Which clients use it: `rocketmq` is an access key, whose `id` its client"
        " sends, and signs with the `secret`.",
    },
    scope=listing(_RULE, RULES_MAX, 1)
    | {"description": "What it is limited to. Default: whatever its user may do."},
)


class KeyOperations:
    """The operations on API keys."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.operations = [
            Operation("GET", _PATH, "listKeys", "List API keys, without their secrets.",
                      self._list, PAGE),
            Operation("POST", _PATH, "createKey",
                      "Create an API key. Its secret is in this answer only.",
                      self._create, {"dry_run": DRY_RUN}, _BODY, success=CREATED),
            Operation("DELETE", f"{_PATH}/{{id}}", "revokeKey", "Revoke an API key.",
                      self._revoke, {"id": _ID, "dry_run": DRY_RUN}),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        found = [
            _shown(key, call.view)
            for key in self._services.issuers.keys.all()
            if self._may(call, key.principal, Right.DESCRIBE_TOKENS)
        ]
        return page(found, "id", call, "keys")

    async def _create(self, call: Call) -> Response:
        client = self._client(call)
        given = call.body
        owner = client
        if "user" in given and given["user"] != call.view.name(client.name):
            owner = Principal(call.view.key(given["user"]))
        self._require(call, owner, "createKey")
        rules = None
        if "scope" in given:
            rules = [_rule(one, call.view) for one in given["scope"]]
        kind = given.get("kind", HTTP)
        new = NewKey(given["name"], owner, given.get("lifetime_ms", LIFETIME_MS), rules, kind)
        keys = self._services.issuers.keys
        secret, key = await keys.create(new, is_dry_run=call.is_dry_run)
        made = _shown(key, call.view) | {"dry_run": call.is_dry_run}
        if call.is_dry_run:
            del made["id"]
            return JSONResponse(made)
        self._services.audit.changed(call.session, "createKey", [(str(owner), f" {key.name}")], 0)
        made |= {"key" if kind == HTTP else "secret": secret}
        return JSONResponse(made, int(CREATED), {"Cache-Control": "no-store"})

    async def _revoke(self, call: Call) -> Json:
        self._client(call)
        keys = self._services.issuers.keys
        key = keys.get(call.path["id"])
        if key is None or not self._may(call, key.principal, Right.DESCRIBE_TOKENS):
            raise CredentialUnknown("the key does not exist")
        self._require(call, key.principal, "revokeKey")
        if not call.is_dry_run:
            await keys.revoke(key.id)
            name = str(key.principal), f" {key.name}"
            self._services.audit.changed(call.session, "revokeKey", [name], 0)
        return _shown(key, call.view) | {"dry_run": call.is_dry_run}

    def _client(self, call: Call) -> Principal:
        """Who asks. Raises Unauthorized for clients that have no keys."""
        principal = call.session.principal
        if principal is None or principal == ANONYMOUS:
            raise Unauthorized("API keys are for clients that log in")
        refuse_keys(call, "a key neither makes nor revokes keys")
        return principal

    def _may(self, call: Call, owner: Principal, right: Right) -> bool:
        client = call.session.principal
        if client is not None and owner[:2] == client[:2]:
            return True
        return client != ANONYMOUS and call.rights.may(right, ResourceType.USER, str(owner))

    def _require(self, call: Call, owner: Principal, request: str) -> None:
        right = Right.CREATE_TOKENS
        if not self._may(call, owner, right):
            call.rights.require(right, ResourceType.USER, str(owner))
        self._services.users.super_users.require(call.session, str(owner), right, request)


def refuse_keys(call: Call, why: str) -> None:
    """Raise Unauthorized if the client has logged in by an API key: a stolen one must not make
    credentials that outlive its revocation."""
    login: HttpLogin | None = call.request.scope.get("state", {}).get(LOGIN)
    if login is not None and login.key is not None:
        raise Unauthorized(f"{why}: log in as a user")


def _rule(given: Json, view: TenantView) -> ScopeRule:
    kind, pattern_type = RESOURCES[given["resource"]], given.get("pattern", "literal")
    name: str = given["name"]
    if view.prefix and kind is ResourceType.USER:  # a tenant's client means its own users
        name = re.sub(f"^{USER}:", f"{USER}:{view.prefix}", name)
    elif (kind in _SCOPED or view.is_operator) and name != WILDCARD:
        name = view.key(name)
    pattern = Pattern(kind, name, PATTERNS[pattern_type])
    return ScopeRule(pattern, Right[given["operation"]])


def _shown(key: ApiKey, view: TenantView) -> Json:
    shown: dict[str, Any] = {
        "id": key.id,
        "name": key.name,
        "kind": key.kind,
        "principal": str(key.principal),
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
    }
    if key.scope is not None:
        shown["scope"] = [_shown_rule(rule, view) for rule in key.scope.rules]
    return shown


def _shown_rule(rule: ScopeRule, view: TenantView) -> Json:
    name, kind = rule.pattern.name, rule.pattern.kind
    return {
        "operation": rule.operation.name,
        "resource": kind.name.lower().replace("_", "-"),
        "name": view.text(name) if view.prefix and kind is ResourceType.USER else name,
        "pattern": rule.pattern.type.name.lower(),
    }
