"""Receipts of what waits to be delivered: a delayed record, a half message.

Invariants: pure. A receipt is given when the record is sent, and where it is listed; it is opaque
to clients, has URL-safe ASCII characters only, and names one record of a topic exactly.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

from headrace.errors import ReceiptInvalid

NUMBER_MAX: Final = 2**63 - 1


def token_of(*numbers: int) -> str:
    """Numbers as an opaque text."""
    plain = ".".join(map(str, numbers))
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def numbers_of(token: str, count: int) -> list[int]:
    """The numbers of such a text. Raises ReceiptInvalid."""
    try:
        plain = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        numbers = [int(part) for part in plain.split(".")]
        if len(numbers) != count or any(not -1 <= n <= NUMBER_MAX for n in numbers):
            raise ValueError
    except ValueError as error:
        raise ReceiptInvalid(
            "a receipt or page_token is not one that this interface returned: pass it as it came"
        ) from error
    return numbers


class DelayedReceipt(NamedTuple):
    """Of a delayed record: with it, the record is cancelled."""

    partition: int
    due_ms: int
    number: int

    @property
    def text(self) -> str:
        """For clients."""
        return token_of(*self)

    @classmethod
    def parse(cls, text: str) -> DelayedReceipt:
        """Raises ReceiptInvalid."""
        return cls(*numbers_of(text, 3))


class HalfReceipt(NamedTuple):
    """Of a half message: with it, the message is committed or rolled back."""

    partition: int
    number: int

    @property
    def text(self) -> str:
        """For clients."""
        return token_of(*self)

    @classmethod
    def parse(cls, text: str) -> HalfReceipt:
        """Raises ReceiptInvalid."""
        partition, number = numbers_of(text, 2)
        if partition < 0 or number < 0:
            raise ReceiptInvalid("the receipt is not one of a half message: pass it as it came")
        return cls(partition, number)
