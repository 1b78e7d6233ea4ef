"""Which names are of which tenant, and which principals the setting `headrace.tenants` puts in one.

Invariants: pure. Whether a principal is of a tenant by the metadata is `tenants.py`'s.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import ANONYMOUS, BROKER, USER
from headrace.errors import RequestInvalid
from headrace.records.identifiers import INTERNAL_TOPICS
from headrace.records.tenant_names import DEFAULT, OPEN, TENANT, prefix_of, tenant_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OF_TENANTS: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID}
)
"""What a tenant has its own of. Its principals may do everything with these, unless a rule denies
it."""
ADMINISTERED: Final = frozenset({ResourceType.USER, ResourceType.CLUSTER})
"""What a tenant has its own of, too, and only principals that a rule names have rights to: its
users, and itself (`«acme»kafka-cluster`), to administer its users and rules."""
ADMINISTERING: Final = sum(
    1 << one
    for one in (
        *(Operation.ALTER, Operation.DESCRIBE),
        *(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
    )
)
"""As bits, what can be done with a tenant itself: to its users and rules, and to its quotas."""
OF_ALL_TENANTS: Final = frozenset({"*", *INTERNAL_TOPICS})
"""Names of topics that hold what all tenants have: all topics that there are, and those in which
brokers keep offsets and transactions. With tenants, no rule opens them."""
NOBODY: Final = "?"
"""In place of a tenant: of principals whose tenant is not certain. No tenant has this name."""
TENANT_NAME: Final = re.compile(TENANT)
_FORM: Final = (
    "write tenant=Type:name, such as acme=User:alice, and separate several by semicolons; nothing"
    " was started"
)


def is_of_another(kind: ResourceType, name: str, own: str, *, has_tenants: bool) -> bool:
    """Whether a key is of another tenant than `own`. No topic's name looks like a key, but an
    installation without tenants may have groups and transactional ids that do."""
    if not has_tenants and kind != ResourceType.TOPIC:
        return False
    return tenant_of_resource(kind, name) != own


def within(kind: ResourceType, tenant: str) -> str:
    """What the keys of a tenant's resources of a kind begin with."""
    return f"{USER}:{prefix_of(tenant)}" if kind == ResourceType.USER else prefix_of(tenant)


def tenant_of_resource(kind: ResourceType, name: str) -> str:
    """The tenant of a key, or of what all keys of a prefix have; DEFAULT: none's."""
    return tenant_of_user(name) if kind == ResourceType.USER else tenant_of(name)


def tenant_of_user(principal: str) -> str:
    """The tenant whose own user a principal is, such as `User:«acme»alice`; DEFAULT: none's."""
    begin = f"{USER}:"
    return tenant_of(principal[len(begin) :]) if principal.startswith(begin + OPEN) else DEFAULT


def is_of_a_client(principal: str) -> bool:
    """Whether a client can log in as this principal, which is no tenant's own user."""
    kind, _, name = principal.partition(":")
    is_client = kind != BROKER and name != "*" and principal != str(ANONYMOUS)
    return bool(kind and name) and is_client and tenant_of_user(principal) == DEFAULT


def tenants_of(text: str, super_users: Collection[str]) -> Mapping[str, str]:
    """The tenant of each principal in `headrace.tenants`. Raises RequestInvalid."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        tenant, _, principal = part.strip().partition("=")
        if TENANT_NAME.fullmatch(tenant) is None:
            raise RequestInvalid(
                f"{tenant[:60]!r} in headrace.tenants is not a tenant: use 1 to 32 of a-z 0-9"
                f" and -, but not - first; {_FORM}"
            )
        if not is_of_a_client(principal):
            raise RequestInvalid(
                f"{principal[:60]!r} in headrace.tenants is not the principal of a client that logs"
                f" in: {_FORM}"
            )
        if principal in super_users:
            raise RequestInvalid(
                f"{principal} is in headrace.tenants and in super.users, who see all tenants:"
                " remove it from one of them; nothing was started"
            )
        if found.setdefault(principal, tenant) != tenant:
            raise RequestInvalid(
                f"{principal} is in two tenants, {found[principal]} and {tenant}: remove one"
                " of them from headrace.tenants; nothing was started"
            )
    return found
