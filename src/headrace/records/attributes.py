"""Queue attributes: the reserved headers that every face reads and writes.

Rules of the room: names and their meaning, no policy. Numbers are decimal text, texts are UTF-8;
of doubles the last counts, as in Kafka's `lastHeader`. Do not change the names: stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import RecordInvalid

DELIVER_AT = "headrace-deliver-at"
"""When the message is due, in ms since the epoch."""
DELAY = "headrace-delay"
"""How long after its arrival the message is due, in ms."""
EXPIRE_AT = "headrace-expire-at"
"""From when on it is not delivered any more, in ms since the epoch."""
PRIORITY = "headrace-priority"
"""0 (last) to 9 (first); 4 where it is not set, as in JMS."""
TAG = "headrace-tag"
"""One word to filter by."""
KEYS = "headrace-keys"
"""Words to find the message by, with spaces between them."""
MESSAGE_GROUP = "headrace-message-group"
"""Messages of one group are delivered in order, one at a time."""
MESSAGE_ID = "headrace-message-id"
"""The sender's name for the message: equal ids are one message."""
TRACEPARENT = "traceparent"
"""W3C Trace Context."""

PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9
TIME_MS_MAX = (1 << 53) - 1
"""The largest time that JSON readers keep exactly; the year 287396."""

_DIGITS_MAX = 16  # of TIME_MS_MAX; int() of a long text takes quadratic time

Headers = Sequence[tuple[str, bytes | None]]


def find_header(headers: Headers, name: str) -> bytes | None:
    """The value of the last header called `name`; None if there is none or it is null."""
    for key, value in reversed(headers):
        if key == name:
            return value
    return None


def read_integer(headers: Headers, name: str, largest: int) -> int | None:
    """The header as a number from 0 to `largest`. Raises RecordInvalid if it is none."""
    value = find_header(headers, name)
    if value is None:
        return None
    if not (0 < len(value) <= _DIGITS_MAX and value.isdigit() and int(value) <= largest):
        raise RecordInvalid(
            f"header {name} holds {value[:40]!r}: set it to a number from 0 to {largest}",
            header=name,
            limit=largest,
        )
    return int(value)


def read_text(headers: Headers, name: str) -> str | None:
    """The header as text. Raises RecordInvalid if it is not UTF-8."""
    value = find_header(headers, name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordInvalid(
            f"header {name} holds {value[:40]!r}: send UTF-8", header=name
        ) from error


def deliver_at_ms(headers: Headers, received_ms: int) -> int | None:
    """When the message is due, None for at once. Raises RecordInvalid.

    `headrace-deliver-at` counts before `headrace-delay`, which is added to `received_ms`.
    """
    due_ms = read_integer(headers, DELIVER_AT, TIME_MS_MAX)
    if due_ms is not None:
        return due_ms
    delay_ms = read_integer(headers, DELAY, TIME_MS_MAX)
    return None if delay_ms is None else received_ms + delay_ms


def expire_at_ms(headers: Headers) -> int | None:
    """From when on the message is not delivered any more. Raises RecordInvalid."""
    return read_integer(headers, EXPIRE_AT, TIME_MS_MAX)


def priority(headers: Headers) -> int:
    """The message's priority, 0 to 9. Raises RecordInvalid."""
    value = read_integer(headers, PRIORITY, PRIORITY_MAX)
    return PRIORITY_DEFAULT if value is None else value


def keys(headers: Headers) -> list[str]:
    """The words to find the message by. Raises RecordInvalid."""
    return (read_text(headers, KEYS) or "").split()
