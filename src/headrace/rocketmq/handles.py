"""The texts by which clients name a delivery, a half message, and a delayed message.

Invariants: opaque to clients, who return them as they came; each is checked before it is believed.
A receipt is that of `queue_receipts`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from headrace.errors import RequestInvalid
from headrace.records.attributes import TEXT_BYTES_MAX

LENGTH_MAX: Final = 2 * TEXT_BYTES_MAX
_NUMBER_LENGTH_MAX: Final = 16


def member_id(member: str) -> str:
    """The group's member that a receipt names: no receipt names one of another protocol."""
    return f"rocketmq-{member}"


def transaction_id(partition: int, message_id: str) -> str:
    """The transaction of a half message."""
    return f"{partition}.{message_id}"


def read_transaction_id(text: str) -> tuple[int, str]:
    """(partition, message id). Raises RequestInvalid."""
    number, _, message_id = text.partition(".")
    return _number(number), message_id


class Recall(NamedTuple):
    """A delayed message."""

    due_ms: int
    message_id: str

    @property
    def text(self) -> str:
        """The handle."""
        return urlsafe_b64encode(f"{self.due_ms}.{self.message_id}".encode()).decode()

    @classmethod
    def read(cls, text: str) -> Recall:
        """The message of a handle. Raises RequestInvalid."""
        if len(text) > LENGTH_MAX:
            raise _foreign()
        try:
            number, _, message_id = urlsafe_b64decode(text).decode().partition(".")
        except ValueError as error:
            raise _foreign() from error
        if not message_id:
            raise _foreign()
        return cls(_number(number), message_id)


def _number(text: str) -> int:
    if not text.isdigit() or not text.isascii() or len(text) > _NUMBER_LENGTH_MAX:
        raise _foreign()
    return int(text)


def _foreign() -> RequestInvalid:
    return RequestInvalid("this handle is not one that this broker gave: pass it as it came")
