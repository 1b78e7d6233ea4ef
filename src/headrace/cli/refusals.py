"""Why a broker refused a record, which the client library does not pass on.

Invariants: reads only; the text is the broker's own, made from the record that was refused.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from headrace.cli.failures import CommandFailed
from headrace.cli.topic_settings import topic_settings
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.client import KafkaError
    from headrace.cli.session import CliSession
    from headrace.records.attributes import Headers


def refusal(
    session: CliSession, error: KafkaError, doing: str, topic: str, headers: Headers
) -> CommandFailed:
    """The failure of a command whose record with `headers` the broker refused with `error`."""
    if error.name() != "INVALID_RECORD" or not headers:
        return session.failure(error, doing, Right("write", "topic", topic))
    # Imported late: it takes longer to load than the rest of a command, for few failures.
    from headrace.errors import RecordInvalid
    from headrace.records.attributes import READING, SETTING, check_read, check_unread

    value = _setting(session, topic, SETTING)
    is_read = value in READING
    try:
        if is_read:
            check_read(headers)
        elif value is not None:
            check_unread(headers, topic, time_ns() // 1_000_000)
    except RecordInvalid as reason:
        step = f"headrace topic alter {topic} --set {SETTING}=read"
        return CommandFailed(
            f"{doing}: {reason}", "Correct the header, then send again" if is_read else step
        )
    return session.failure(error, doing, Right("write", "topic", topic))


def _setting(session: CliSession, topic: str, name: str) -> str | None:
    return topic_settings(session, topic).get(name)
