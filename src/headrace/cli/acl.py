"""`headrace acl`: who may do what, as Kafka's access control lists say.

Invariants: any broker accepts a change, and every broker applies it within a second. A broker
explains a decision, over HTTP, since it depends on tenants and settings as well as on rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.client import kafka_admin
from headrace.cli.failures import NOT_FOUND, USAGE, CommandFailed
from headrace.cli.names import NAME, written_name
from headrace.cli.output import AS_JSON, print_json, print_table, tell
from headrace.cli.parameters import OF_TENANT, PRINCIPAL_NAME, TOPIC_NAME, CommandGroup
from headrace.cli.web import HTTP, Web, path_of
from headrace.records.tenant_names import prefix_of
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.cli.session import CliSession

OPERATIONS: Final = (
    *("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION"),
    *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"),
)
CLUSTER: Final = "kafka-cluster"
KINDS: Final = {"topic": "TOPIC", "group": "GROUP", "transactional_id": "TRANSACTIONAL_ID"}
ROLES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "producer": {"TOPIC": ("WRITE", "CREATE"), "TRANSACTIONAL_ID": ("WRITE",)},
    "consumer": {"TOPIC": ("READ",), "GROUP": ("READ",)},
    "viewer": {
        **dict.fromkeys(("TOPIC", "GROUP"), ("DESCRIBE", "DESCRIBE_CONFIGS")),
        "TRANSACTIONAL_ID": ("DESCRIBE",),
        "CLUSTER": ("DESCRIBE", "DESCRIBE_CONFIGS"),
    },
    "admin": dict.fromkeys(("TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"), ("ALL",)),
}
"""Bundles of operations by kind of resource: those of the kinds that are named are added."""
Resource = tuple[str, str]
"""(kind, name)."""


def resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name resources."""
    for option in (
        click.option("--prefix", is_flag=True, help="All names that begin with the given ones."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--tenant",
            multiple=True,
            metavar="TENANT",
            type=OF_TENANT,
            help="To administer a tenant: ALTER is to change its users and rules.",
        ),
        click.option(
            "--transactional-id", multiple=True, type=NAME, metavar="ID", help="'*' for all."
        ),
        click.option("--group", multiple=True, type=NAME, metavar="GROUP", help="'*' for all."),
        click.option(
            "--topic", multiple=True, metavar="TOPIC", type=TOPIC_NAME, help="'*' for all."
        ),
    ):
        command = option(command)
    return command


def rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name a rule's principal, host and operation."""
    for option in (
        click.option("--host", metavar="ADDRESS", help="Only from this address."),
        click.option(
            "--operation",
            multiple=True,
            type=click.Choice(OPERATIONS, case_sensitive=False),
            help="May be repeated.",
        ),
        click.option(
            "--principal",
            type=PRINCIPAL_NAME,
            metavar="TYPE:NAME",
            help="For example User:alice, or User:*.",
        ),
    ):
        command = option(command)
    return command


@click.group(cls=CommandGroup)
def acl() -> None:
    """Add, list, remove and explain access control lists.

    \b
    Examples:
      headrace acl add --principal User:alice --operation READ --topic orders --group billing
      headrace acl add --principal User:loader --role producer --topic raw. --prefix
      headrace acl add --principal User:bob --operation WRITE --topic orders --deny
      headrace acl add --principal User:acme/boss --operation ALTER --tenant acme
      headrace acl list --topic orders
      headrace acl remove --principal User:alice
      headrace acl explain --principal User:bob --operation WRITE --topic orders

    Rules that deny win. READ, WRITE, DELETE and ALTER allow DESCRIBE as well. See docs/SECURITY.md.
    """


def _resources(options: dict[str, Any]) -> list[Resource]:
    found = [(kind, name) for option, kind in KINDS.items() for name in options[option]]
    if options["cluster"]:
        found.append(("CLUSTER", CLUSTER))
    found += [("CLUSTER", prefix_of(tenant) + CLUSTER) for tenant in options["tenant"]]
    return found


def _named(resources: list[Resource]) -> list[Resource]:
    if not resources:
        raise CommandFailed(
            "no resource specified; nothing was changed",
            "Add --topic, --group, --transactional-id, --cluster or --tenant",
            USAGE,
        )
    return resources


def _binding(resource: Resource, *, prefix: bool, entry: tuple[str, str, str, str]) -> Any:
    """`entry`: (principal, host, operation, permission). Raises CommandFailed."""
    admin = kafka_admin()
    kind, name = resource
    principal, host, operation, permission = entry
    try:
        return admin.AclBinding(
            admin.ResourceType["BROKER" if kind == "CLUSTER" else kind],
            name,
            admin.ResourcePatternType["PREFIXED" if prefix and kind != "CLUSTER" else "LITERAL"],
            principal,
            host,
            admin.AclOperation[operation],
            admin.AclPermissionType[permission],
        )
    except (ValueError, TypeError) as error:
        raise CommandFailed(f"{error}; nothing was changed", "", USAGE) from None


def _wanted(
    resources: list[Resource], operations: Sequence[str], role: str | None
) -> list[tuple[Resource, str]]:
    """The operations on each resource. Raises CommandFailed."""
    if bool(operations) == (role is not None):
        raise CommandFailed(
            "name either operations or a role; nothing was changed",
            "Add --operation READ, or --role consumer",
            USAGE,
        )
    found = [
        (resource, operation)
        for resource in resources
        for operation in (operations or ROLES[role or ""].get(resource[0], ()))
    ]
    if not found:
        raise CommandFailed(
            f"role {role} has no operation on these resources; nothing was changed",
            f"It is for {', '.join(ROLES[role or '']).lower()}",
            USAGE,
        )
    return found


@acl.command()
@rule_options
@click.option("--role", type=click.Choice([*ROLES]), help="A bundle of operations.")
@click.option("--deny", is_flag=True, help="Deny instead of allow.")
@resource_options
@AS_JSON
@click.pass_obj
def add(
    session: CliSession,
    /,
    principal: str | None,
    operation: tuple[str, ...],
    host: str | None,
    *,
    role: str | None,
    deny: bool,
    prefix: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Add rules, for one principal."""
    if principal is None:
        step = "Add --principal User:NAME"
        raise CommandFailed("no principal specified; nothing was changed", step, USAGE)
    permission = "DENY" if deny else "ALLOW"
    bindings = [
        _binding(resource, prefix=prefix, entry=(principal, host or "*", one, permission))
        for resource, one in _wanted(_named(_resources(options)), operation, role)
    ]
    futures = session.admin().create_acls(bindings, request_timeout=session.timeout_s)
    for binding in bindings:
        session.answer(futures[binding], "add a rule", Right("alter", "cluster"))
    _show(bindings, as_json=as_json, key="added")


def _filters(options: dict[str, Any], operations: Sequence[str], **entry: Any) -> list[Any]:
    resources: list[Resource | None] = [*_resources(options)]
    admin = kafka_admin()
    pattern = admin.ResourcePatternType
    types = admin.ResourceType
    return [
        admin.AclBindingFilter(
            types.ANY if one is None else types["BROKER" if one[0] == "CLUSTER" else one[0]],
            None if one is None else one[1],
            pattern.PREFIXED if options["prefix"] else entry["pattern"],
            entry["principal"],
            entry["host"],
            admin.AclOperation[operation],
            admin.AclPermissionType.ANY,
        )
        for one in (resources or [None])
        for operation in (operations or ["ANY"])
    ]


@acl.command("list")
@rule_options
@resource_options
@AS_JSON
@click.pass_obj
def list_(
    session: CliSession,
    /,
    principal: str | None,
    operation: tuple[str, ...],
    host: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """List rules; with resources, all that apply to them."""
    pattern = kafka_admin().ResourcePatternType.MATCH
    filters = _filters(options, operation, principal=principal, host=host, pattern=pattern)
    found = _found(session, filters)
    _show(found, as_json=as_json, key="acls")


def _found(session: CliSession, filters: Sequence[Any]) -> list[Any]:
    found: dict[Any, None] = {}
    for wanted in filters:
        future = session.admin().describe_acls(wanted, request_timeout=session.timeout_s)
        found.update(
            dict.fromkeys(session.answer(future, "list rules", Right("describe", "cluster")))
        )
    return list(found)


@acl.command()
@rule_options
@resource_options
@AS_JSON
@click.pass_obj
def remove(
    session: CliSession,
    /,
    principal: str | None,
    operation: tuple[str, ...],
    host: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove the rules that the options describe exactly."""
    if principal is None and not _resources(options):
        raise CommandFailed(
            "this would remove all rules; nothing was changed",
            "Name a --principal or a resource",
            USAGE,
        )
    patterns = kafka_admin().ResourcePatternType
    pattern = patterns.LITERAL if _resources(options) else patterns.ANY
    filters = _filters(options, operation, principal=principal, host=host, pattern=pattern)
    futures = session.admin().delete_acls(filters, request_timeout=session.timeout_s)
    removed = [
        one
        for wanted in filters
        for one in session.answer(futures[wanted], "remove rules", Right("alter", "cluster"))
    ]
    if not removed:
        raise CommandFailed("no such rule", "List the rules: headrace acl list", NOT_FOUND)
    _show(removed, as_json=as_json, key="removed")


def _row(binding: Any) -> dict[str, str]:
    kind = binding.restype.name
    return {
        "permission": binding.permission_type.name,
        "principal": binding.principal,
        "operation": binding.operation.name,
        "resource": "CLUSTER" if kind == "BROKER" else kind,
        "name": binding.name,
        "pattern": binding.resource_pattern_type.name,
        "host": binding.host,
    }


def _show(bindings: Sequence[Any], *, as_json: bool, key: str) -> None:
    rows = [_row(binding) for binding in bindings]
    if as_json:
        print_json({key: rows})
    else:
        columns = ["permission", "principal", "operation", "resource", "name", "pattern", "host"]
        table = [[row[one] for one in columns] for row in rows]
        for row in table:
            row[4] = written_name(row[4])
        print_table(columns, table, empty="no rules: headrace acl add --help shows how to add one")


@acl.command()
@rule_options
@resource_options
@AS_JSON
@HTTP
@click.pass_obj
def explain(
    session: CliSession,
    /,
    principal: str | None,
    operation: tuple[str, ...],
    host: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether a principal may do something, and which rule decides."""
    resources = _resources(options)
    if principal is None or len(operation) != 1 or len(resources) != 1 or options["prefix"]:
        raise CommandFailed(
            "name one principal, one operation and one resource",
            "For example --principal User:alice --operation READ --topic orders",
            USAGE,
        )
    kind, name = resources[0]
    question = {
        "principal": principal,
        "host": host or "*",
        "operation": operation[0].upper(),
        "resource": kind.lower().replace("_", "-"),
        "name": name,
    }
    answer = Web(session).ask("POST", path_of("acl-explanations"), question)
    rules = [_rule_text(one) for one in answer["acls"]]
    found = {"allowed": answer["allowed"], "reason": answer["reason"], "rules": rules}
    if as_json:
        print_json(found)
        return
    tell(f"{'allowed' if found['allowed'] else 'denied'}: {found['reason']}")
    for rule in found["rules"]:
        tell(f"  {rule}")


def _rule_text(rule: dict[str, str]) -> str:
    """`allow User:alice READ from * on topic orders`."""
    prefix = " (prefix)" if rule["pattern"] == "prefixed" else ""
    who = f"{rule['permission']} {rule['principal']} {rule['operation']} from {rule['host']}"
    return f"{who} on {rule['resource']} {rule['name']}{prefix}"
