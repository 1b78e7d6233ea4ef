"""How a tenant and a name are one key: of topics, groups and transactional ids.

Invariants: pure. The default tenant's names are stored as they are, so an installation without
tenants stores what it always did. Another tenant's key begins with the tenant between two marks,
which no topic's name may have; a client of the tenant writes what comes after them.
"""

from __future__ import annotations

import re
from typing import Final

OPEN: Final = "«"
CLOSE: Final = "»"
"""Do not change: stored. No topic's name has them, and a ZooKeeper node's name may."""
DEFAULT: Final = ""
"""The tenant of every name in an installation without tenants."""
TENANT: Final = "[a-z0-9][a-z0-9-]{0,31}"
"""The name of a tenant, as a regular expression."""
_WRITTEN: Final = re.compile(f"({TENANT})/(.*)", re.DOTALL)
_PREFIX: Final = re.compile(f"{OPEN}({TENANT}){CLOSE}")


def prefix_of(tenant: str) -> str:
    """What precedes each name of a tenant in its key."""
    return f"{OPEN}{tenant}{CLOSE}" if tenant else ""


def tenant_of(key: str) -> str:
    """The tenant of a key."""
    found = _PREFIX.match(key) if key[:1] == OPEN else None
    return DEFAULT if found is None else found[1]


def name_in(key: str) -> str:
    """The name within its tenant, as the tenant's clients write it."""
    found = _PREFIX.match(key) if key[:1] == OPEN else None
    return key if found is None else key[found.end() :]


def has_marks(name: str) -> bool:
    """Whether a name has one of the marks: within a tenant, it looks like the key of another."""
    return OPEN in name or CLOSE in name


def key_of(written: str) -> str:
    """The key of a topic as an operator writes it: `acme/orders`, as no topic's name has a slash. A
    key, or a name of the default tenant, stays as it is; `acme/` is what the keys of acme begin
    with."""
    found = _WRITTEN.fullmatch(written)
    return written if found is None else prefix_of(found[1]) + found[2]


def written(key: str) -> str:
    """A topic's key as an operator writes it: `acme/orders`."""
    tenant = tenant_of(key)
    return f"{tenant}/{name_in(key)}" if tenant else key


def sibling(key: str, name: str) -> str:
    """The key of a name in the tenant of another key. Empty if there is none: beside a key of the
    default tenant, what looks like a key is of another tenant."""
    found = _PREFIX.match(key) if key[:1] == OPEN else None
    if found is not None:
        return found[0] + name
    return name if tenant_of(name) == DEFAULT else ""
