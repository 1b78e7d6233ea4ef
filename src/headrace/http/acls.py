"""Access control lists over HTTP: listed, added, removed, and explained.

Invariants: the rules are those of `headrace acl` and of Kafka's clients, kept by
`broker/services/access_control`; without an authorizer everything here is refused. A rule's id is a
digest of all that it says.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from headrace.broker.security.acls import (
    ANY,
    NAME_LENGTH_MAX,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Pattern,
    PatternType,
    Permission,
    Question,
)
from headrace.broker.security.authorizer import CLUSTER_NAME, ResourceType
from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.services.tenant_acls import rules_of
from headrace.errors import CredentialUnknown
from headrace.http.operations import (
    DRY_RUN,
    PAGE,
    Call,
    Json,
    Operation,
    fields,
    page,
    text,
)
from headrace.records.tenant_names import CLOSE, OPEN, TENANT

if TYPE_CHECKING:
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.services import Services
    from headrace.broker.services.tenant_acls import TenantAcls
    from headrace.http.schemas import Schema

RESOURCES: Final = {kind.name.lower().replace("_", "-"): kind for kind in ResourceType}
PATTERNS: Final = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
_PERMISSIONS: Final = {"allow": Permission.ALLOW, "deny": Permission.DENY}
_PATH: Final = "/v1/acls"
_ID: Final = text(16, 16, pattern="^[0-9a-f]{16}$")
_NAME: Final = text(NAME_LENGTH_MAX, 1)
_PRINCIPAL: Final = text(NAME_LENGTH_MAX, 3, pattern=r"^[^:]+:[\s\S]+$", description="User:alice")
_RESOURCE: Final[Schema] = {"type": "string", "enum": [*RESOURCES]}


def _asked(required: tuple[str, ...], **more: Schema) -> Schema:
    """A body about an operation on a resource. The cluster has one name, or `*`, and in each tenant
    one more."""
    found = fields(
        ("principal", "operation", "resource", "name", *required),
        principal=_PRINCIPAL,
        host=text(NAME_LENGTH_MAX, 1, default=WILDCARD, description="An address, or `*`."),
        operation={"type": "string", "enum": [one.name for one in Right]},
        resource=_RESOURCE,
        name=_NAME,
        **more,
    )
    others = {"type": "string", "enum": [one for one in RESOURCES if one != "cluster"]}
    cluster = {"type": "string", "enum": ["cluster"]}
    named = f"({OPEN}{TENANT}{CLOSE})?{CLUSTER_NAME}"
    names = {"type": "string", "pattern": rf"^({named}|{TENANT}/{CLUSTER_NAME}|\*)$"}
    return found | {
        "description": f"The name of the cluster is {CLUSTER_NAME}; that of what a tenant"
        f" administers in it is acme/{CLUSTER_NAME}.",
        "anyOf": [
            {"type": "object", "properties": {"resource": others}},
            {"type": "object", "properties": {"resource": cluster, "name": names}},
        ],
    }


_RULE: Final = _asked(
    ("permission",),
    permission={"type": "string", "enum": [*_PERMISSIONS]},
    pattern={"type": "string", "enum": [*PATTERNS], "default": "literal"},
)


class AclOperations:
    """The operations on access control lists."""

    def __init__(self, services: Services) -> None:
        self._services = services
        wanted: dict[str, Schema] = {
            "principal": _NAME,
            "resource": _RESOURCE,
            "name": _NAME | {"description": "Rules that apply to a resource of this name."},
        }
        self.operations = [
            Operation("GET", _PATH, "listAcls", "List rules of access.",
                      self._list, {**wanted, **PAGE}),
            Operation("POST", _PATH, "createAcl", "Add a rule. One that exists stays.",
                      self._create, {"dry_run": DRY_RUN}, _RULE),
            Operation("DELETE", f"{_PATH}/{{id}}", "deleteAcl", "Remove a rule.",
                      self._delete, {"id": _ID, "dry_run": DRY_RUN}),
            Operation("POST", "/v1/acl-explanations", "explainAcl",
                      "Say whether a principal may do something, and which rule decides.",
                      self._explain, body=_asked(()), is_read=True),
        ]  # fmt: skip

    def _rules(self, call: Call) -> AccessControl | TenantAcls:
        """Raises SecurityDisabled."""
        return rules_of(self._services, call.session)

    async def _list(self, call: Call) -> Json:
        query = call.query
        wanted = AclFilter(
            kind=RESOURCES[query["resource"]] if "resource" in query else ANY,
            name=query.get("name"),
            pattern_type=PatternType.MATCH if "name" in query else ANY,
            principal=query.get("principal"),
        )
        found = sorted(map(_shown, self._rules(call).find(wanted)), key=lambda one: str(one["id"]))
        return page(found, "id", call, "acls")

    async def _create(self, call: Call) -> Json:
        rules, acl = self._rules(call), _rule(call.body)
        call.body["name"] = call.view.prefix + acl.pattern.name  # for the audit log
        exists = bool(rules.find(_exactly(acl)))
        for error in await rules.create([acl], is_dry_run=call.is_dry_run):
            if error is not None:
                raise error
        return {"acl": _shown(acl), "existed": exists, "dry_run": call.is_dry_run}

    async def _delete(self, call: Call) -> Json:
        rules = self._rules(call)
        for acl in rules.find(AclFilter()):
            shown = _shown(acl)
            if shown["id"] == call.path["id"]:
                await rules.delete(_exactly(acl), is_dry_run=call.is_dry_run)
                return {"acl": shown, "dry_run": call.is_dry_run}
        raise CredentialUnknown("the rule does not exist")

    async def _explain(self, call: Call) -> Json:
        given = call.body
        question = Question(
            given["principal"],
            given.get("host", WILDCARD),
            Right[given["operation"]],
            RESOURCES[given["resource"]],
            given["name"],
        )
        found = self._rules(call).explain(question)
        return {
            "allowed": found.is_allowed,
            "reason": found.reason,
            "code": found.code,
            "values": found.values,
            "may_differ": found.may_differ,
            "acls": [_shown(one) for one in found.rules],
        }


def _rule(given: Json) -> Acl:
    pattern_type = PATTERNS[given.get("pattern", "literal")]
    return Acl(
        Pattern(RESOURCES[given["resource"]], given["name"], pattern_type),
        Entry(
            given["principal"],
            given.get("host", WILDCARD),
            Right[given["operation"]],
            _PERMISSIONS[given["permission"]],
        ),
    )


def _exactly(acl: Acl) -> AclFilter:
    pattern, entry = acl
    return AclFilter(pattern.kind, pattern.name, pattern.type, *entry)


def _shown(acl: Acl) -> Json:
    pattern, entry = acl
    values = {
        "permission": entry.permission.name.lower(),
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation.name,
        "resource": pattern.kind.name.lower().replace("_", "-"),
        "name": pattern.name,
        "pattern": pattern.type.name.lower(),
    }
    digest = sha256(repr([*values.values()]).encode(errors="surrogatepass")).hexdigest()
    return {"id": digest[:16], **values}
