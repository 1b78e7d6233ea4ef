"""What live brokers know to be wrong, as stored for those who ask about the cluster.

    /health/<id>    HealthFact (ephemeral; absent while nothing is wrong)

Invariants: as in `facts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.metadata.fact_json import FactReader, encode_fact
from headrace.metadata.facts import StoredFact

HEALTH = "/health/"
PROBLEMS_MAX = 200
"""The first so many are published: a key has at most 1 MiB."""
TEXT_MAX = 1_000
_PASSING = "passing"
"""Do not change: stored."""


class Problem(NamedTuple):
    """Something that is not served, or not as it was set."""

    what: str
    reason: str
    """With the next step."""
    is_passing: bool = False
    """The last attempt failed, as while bookies cannot be reached; the next one may succeed, and is
    made when a client asks."""

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def health_key(broker_id: int) -> str:
    """The key of a broker's problems."""
    return f"{HEALTH}{broker_id}"


@dataclass(slots=True)
class HealthFact(StoredFact):
    """The problems of one broker."""

    problems: list[Problem]
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The stored bytes."""
        shown = [
            {"what": one.what[:TEXT_MAX], "reason": one.reason[:TEXT_MAX]}
            | ({"state": _PASSING} if one.is_passing else {})
            for one in self.problems
        ]
        return encode_fact({"problems": shown, **self.unknown})

    @classmethod
    def decode(cls, value: bytes) -> HealthFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("health", value)
        return cls(
            [
                Problem(
                    one.text("what"),
                    one.text("reason"),
                    one.text_or_none("state") == _PASSING,
                )
                for one in reader.objects("problems", "problem")
            ],
            reader.rest(),
        )
