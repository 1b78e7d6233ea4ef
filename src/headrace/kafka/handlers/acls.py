"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290).

Invariants: access control lists are in `broker/services/access_control`, and what people of a
tenant see of them in `tenant_acls`; without an authorizer all three are refused with
SECURITY_DISABLED.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.acls import (
    Acl,
    AclFilter,
    Entry,
    Pattern,
    PatternType,
    Permission,
)
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.services.tenant_acls import rules_of
from headrace.broker.services.tenant_view import view_of
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.tenant_view import TenantView
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

CHANGES_MAX: Final = 10_000
"""Rules, or filters, in one request."""


def _status(error: HeadraceError | None) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": message_of(error)}


def _view(node: Node, context: Context) -> TenantView:
    """How the client writes names, which are keys here. Those of operators are as they wrote them:
    there, a key is a name of its own."""
    return view_of(node.services, context.session)


def _filter(item: Any, view: TenantView) -> AclFilter:
    name = item.resource_name_filter
    return AclFilter(
        item.resource_type_filter,
        None if name is None else view.name(name),
        item.pattern_type_filter,
        item.principal_filter,
        item.host_filter,
        item.operation,
        item.permission_type,
    )


async def describe_acls(node: Node, request: Any, context: Context) -> Answer:
    """DescribeAcls: the rules that a filter selects."""
    try:
        found = rules_of(node.services, context.session).find(
            _filter(request, _view(node, context))
        )
    except HeadraceError as error:
        return {**_status(error), "resources": []}
    resources = [
        {
            "resource_type": pattern.kind,
            "resource_name": pattern.name,
            "pattern_type": pattern.type,
            "acls": [_entry(acl.entry) for acl in acls],
        }
        for pattern, acls in groupby(found, key=lambda acl: acl.pattern)
    ]
    return {**_status(None), "resources": resources}


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _acl(item: Any, view: TenantView) -> Acl:
    """Raises RequestInvalid."""
    try:
        kind = ResourceType(item.resource_type)
        pattern_type = PatternType(item.resource_pattern_type)
        operation, permission = Operation(item.operation), Permission(item.permission_type)
    except ValueError as error:
        raise RequestInvalid(
            f"a rule cannot be stored: {error} of those that it may name"
        ) from None
    return Acl(
        Pattern(kind, view.name(item.resource_name), pattern_type),
        Entry(item.principal, item.host, operation, permission),
    )


async def create_acls(node: Node, request: Any, context: Context) -> Answer:
    """CreateAcls: each rule has its own result."""
    errors: list[HeadraceError | None] = [None] * len(request.creations)
    try:
        rules, view = rules_of(node.services, context.session), _view(node, context)
        if len(request.creations) > CHANGES_MAX:
            raise RequestInvalid(f"a request has at most {CHANGES_MAX} rules: split it")
        acls: dict[int, Acl] = {}
        for at, item in enumerate(request.creations):
            try:
                acls[at] = _acl(item, view)
            except HeadraceError as error:
                errors[at] = error
        for at, result in zip(acls, await rules.create(list(acls.values())), strict=True):
            errors[at] = result
    except HeadraceError as error:
        errors = [error] * len(errors)
    return {"results": [_status(error) for error in errors]}


async def delete_acls(node: Node, request: Any, context: Context) -> Answer:
    """DeleteAcls: each filter has its own result, with the rules that it deleted."""
    results: list[dict[str, Any]] = []
    view = _view(node, context)
    for number, item in enumerate(request.filters):
        deleted: list[Acl] = []
        failed: HeadraceError | None = None
        try:
            if number >= CHANGES_MAX:
                raise RequestInvalid(f"a request has at most {CHANGES_MAX} filters: split it")
            await asyncio.sleep(0)  # each one looks at all rules: others have their turns
            deleted = await rules_of(node.services, context.session).delete(_filter(item, view))
        except HeadraceError as error:
            failed = error
        matching = [
            {
                **_status(None),
                "resource_type": acl.pattern.kind,
                "resource_name": acl.pattern.name,
                "pattern_type": acl.pattern.type,
                **_entry(acl.entry),
            }
            for acl in deleted
        ]
        results.append({**_status(failed), "matching_acls": matching})
    return {"filter_results": results}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_ACLS: describe_acls,
    apis.CREATE_ACLS: create_acls,
    apis.DELETE_ACLS: delete_acls,
}
