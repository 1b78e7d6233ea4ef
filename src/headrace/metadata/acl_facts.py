"""Metadata of access control lists: one fact for each resource pattern, with all of its rules.

Do not change: stored. Brokers of earlier versions ignore these keys and preserve them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DataCorrupt
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import StoredFact

ACLS = "/acls/"


def acl_key(kind: int, pattern_type: int, name: str) -> str:
    """The key of a pattern's rules: Kafka's numbers of the resource type and the pattern type, and
    the name in hexadecimal."""
    return f"{ACLS}{kind},{pattern_type},{name.encode().hex()}"


def pattern_of_key(key: str) -> tuple[int, int, str]:
    """(resource type, pattern type, name) of a key under ACLS. Raises DataCorrupt."""
    try:
        kind, pattern_type, name = key.removeprefix(ACLS).split(",")
        return int(kind), int(pattern_type), bytes.fromhex(name).decode()
    except ValueError as error:
        raise DataCorrupt(
            f"{key!r} is not the key of an access control list: remove it", key=key
        ) from error


@dataclass(slots=True)
class AclRule(StoredFact):
    """One rule; operation and permission are Kafka's numbers."""

    principal: str
    host: str
    operation: int
    permission: int
    unknown: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(slots=True)
class AclFact(StoredFact):
    """The rules of one resource pattern."""

    rules: list[AclRule]
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> AclFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("access control list", value)
        rules = [
            AclRule(
                one.text("principal"),
                one.text("host"),
                one.integer("operation", 0),
                one.integer("permission", 0),
                one.rest(),
            )
            for one in reader.objects("rules", "rule of an access control list")
        ]
        return cls(rules, reader.rest())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with the fact."""
        return not self.rules and not self.unknown
