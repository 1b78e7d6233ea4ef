"""Pending messages of a topic: delayed records and half messages.

Invariants: uses HTTP, page by page, until the requested number is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import say
from headrace.cli.parameters import TOPIC_NAME
from headrace.cli.web import Web, path_of, require_none_failed

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

TOPIC = click.argument("topic", metavar="TOPIC", type=TOPIC_NAME)
_AT_ONCE = 500


def list_waiting(
    session: CliSession, topic: str, kind: str, query: dict[str, Any], effect: str
) -> list[dict[str, Any]]:
    """Return at most `query["limit"]` items of this kind (`delayed` or `half`), unordered.

    `effect` describes what is missing if some partition has no broker. Raises CommandFailed.
    """
    count = query["limit"]
    found: list[dict[str, Any]] = []
    answers = []
    asked = query | {"limit": min(count, _AT_ONCE)}
    path = path_of("topics", topic, kind)
    for answer in Web(session).ask_pages("GET", path, query=asked):
        answers.append(answer)
        found += answer[kind]
        if len(found) >= count:
            break
        require_none_failed(answer, effect)
    if not found:
        _warn_of_unread_attributes(answers)
    return found[:count]


def _warn_of_unread_attributes(answers: list[dict[str, Any]]) -> None:
    """Explain an empty list if the topic does not read the headers that would fill it."""
    if not any(answer["reads_attributes"] for answer in answers):
        topic = answers[0]["topic"]
        say(
            f"topic {topic} does not read queue attributes (headrace-* headers)"
            f"; enable them with: headrace topic alter {topic} --set"
            " headrace.message.attributes=read"
        )
