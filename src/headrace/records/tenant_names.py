"""How a tenant and a name are one key: of topics, groups, transactional ids and users.

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
USER: Final = "User:"
"""What precedes a user's name in a principal."""
_WRITTEN: Final = re.compile(f"({USER})?(/*)({TENANT})/(.*)", re.DOTALL)
_PREFIX: Final = re.compile(f"{OPEN}({TENANT}){CLOSE}")
_KEY: Final = re.compile(f"({USER})?{OPEN}({TENANT}){CLOSE}")


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


def shown_name(key: str, tenant: str) -> str | None:
    """The key of a name, or a principal, as clients of a tenant write it: without the tenant. None:
    it is another tenant's."""
    user = USER if key.startswith(USER) else ""
    of = tenant_of(key[len(user) :])
    if of == DEFAULT:
        return key
    return user + name_in(key[len(user) :]) if of == tenant else None


def has_marks(name: str) -> bool:
    """Whether a name has one of the marks: within a tenant, it looks like the key of another."""
    return OPEN in name or CLOSE in name


def key_of(text: str) -> str:
    """The key of a name as an operator writes it: `acme/orders`, or `User:acme/alice` for a
    principal. A name of the default tenant that looks so has one more slash before it. A key, and
    every other name, stays as it is; `acme/` is what the keys of acme begin with."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return text
    user, slashes, tenant, name = found[1] or "", *found.group(2, 3, 4)
    return f"{user}{slashes[1:]}{tenant}/{name}" if slashes else f"{user}{prefix_of(tenant)}{name}"


def written(key: str) -> str:
    """A key as an operator writes it: each key in one way, which is no other's."""
    found = _KEY.match(key)
    if found is not None:
        return f"{found[1] or ''}{found[2]}/{key[found.end() :]}"
    found = _WRITTEN.fullmatch(key)
    return key if found is None else f"{found[1] or ''}/{key[found.end(1) if found[1] else 0 :]}"


def written_topic(key: str) -> str:
    """The same of a topic, which may be written already: no topic's name has a slash."""
    return written(key) if key[:1] == OPEN else key


def with_written_keys(text: str) -> str:
    """A text for operators that may name keys of tenants."""
    return _PREFIX.sub(r"\1/", text)


def sibling(key: str, name: str) -> str:
    """The key of a name in the tenant of another key. Empty if there is none: beside a key of the
    default tenant, what looks like a key is of another tenant."""
    found = _PREFIX.match(key) if key[:1] == OPEN else None
    if found is not None:
        return found[0] + name
    return name if tenant_of(name) == DEFAULT else ""
