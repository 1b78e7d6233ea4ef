"""Bugs that are planted to prove that fuzzing finds them.

Invariants: each takes away what turns a parser's own error into a refusal, in one place.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from headrace.coordination.groups import consumer_protocol
from headrace.errors import RecordInvalid
from headrace.grpc import hpack
from headrace.runtime import scram
from headrace_verify.self_proof import Bug
from headrace_verify.task import replace_existing

if TYPE_CHECKING:
    from headrace_verify.self_proof import Patch


def decode_base64_of_a_login_unseen(patch: Patch) -> None:
    patch(scram, "_decoded", base64.b64decode)


def look_up_headers_beyond_the_table(patch: Patch) -> None:
    def indexed(decoder: Any, index: int) -> Any:
        table = decoder._table  # noqa: SLF001 - in the place of a method
        return table[-index]

    patch(hpack.HeaderDecoder, "_indexed", indexed)


def expect_subscriptions_to_be_complete(patch: Patch) -> None:
    class Never(RecordInvalid):
        """What nothing raises."""

    patch(consumer_protocol, "RecordInvalid", Never)


BUGS = (
    Bug(decode_base64_of_a_login_unseen, ("logins",)),
    Bug(look_up_headers_beyond_the_table, ("header_blocks",)),
    Bug(expect_subscriptions_to_be_complete, ("groups",)),
)


def plant(name: str) -> None:
    """Plant the bug of this name; "" is none."""
    for bug in BUGS:
        if bug.name == name:
            bug.plant(replace_existing)
