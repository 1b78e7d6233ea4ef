"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290).

Invariants: access control lists are in `broker/services/access_control`; without an authorizer all
three are refused with SECURITY_DISABLED.
"""

from __future__ import annotations

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
from headrace.errors import HeadraceError, RequestInvalid, SecurityDisabled
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.access_control import AccessControl
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

CHANGES_MAX: Final = 10_000
"""Rules, or filters, in one request."""


def _access(node: Node) -> AccessControl:
    """Raises SecurityDisabled."""
    if node.services.access is None:
        raise SecurityDisabled(
            "no authorizer is configured on the broker, so it has no access control lists: set"
            " headrace.authorizer=acl"
        )
    return node.services.access


def _status(error: HeadraceError | None) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": message_of(error)}


async def describe_acls(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeAcls: the rules that a filter selects."""
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    try:
        found = _access(node).find(wanted)
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


def _acl(item: Any) -> Acl:
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
        Pattern(kind, item.resource_name, pattern_type),
        Entry(item.principal, item.host, operation, permission),
    )


async def create_acls(node: Node, request: Any, _context: Context) -> Answer:
    """CreateAcls: each rule has its own result."""
    errors: list[HeadraceError | None] = [None] * len(request.creations)
    try:
        access = _access(node)
        if len(request.creations) > CHANGES_MAX:
            raise RequestInvalid(f"a request has at most {CHANGES_MAX} rules: split it")
        acls: dict[int, Acl] = {}
        for at, item in enumerate(request.creations):
            try:
                acls[at] = _acl(item)
            except HeadraceError as error:
                errors[at] = error
        for at, result in zip(acls, await access.create(list(acls.values())), strict=True):
            errors[at] = result
    except HeadraceError as error:
        errors = [error] * len(errors)
    return {"results": [_status(error) for error in errors]}


async def delete_acls(node: Node, request: Any, _context: Context) -> Answer:
    """DeleteAcls: each filter has its own result, with the rules that it deleted."""
    results: list[dict[str, Any]] = []
    for number, item in enumerate(request.filters):
        wanted = AclFilter(
            item.resource_type_filter,
            item.resource_name_filter,
            item.pattern_type_filter,
            item.principal_filter,
            item.host_filter,
            item.operation,
            item.permission_type,
        )
        deleted: list[Acl] = []
        failed: HeadraceError | None = None
        try:
            if number >= CHANGES_MAX:
                raise RequestInvalid(f"a request has at most {CHANGES_MAX} filters: split it")
            deleted = await _access(node).delete(wanted)
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
