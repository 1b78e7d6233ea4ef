"""The texts by which clients name a delivery and a delayed message.

Invariants: opaque to clients, who return them as they came; what stands in them is checked by the
services that gave the receipts (`queue_receipts`, `timer_receipts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.timer_receipts import HalfReceipt
from headrace.errors import ReceiptInvalid

if TYPE_CHECKING:
    from uuid import UUID

LENGTH_MAX: Final = 1_000
_SEPARATOR: Final = "."
"""No part of a receipt."""


def member_id(member: str) -> str:
    """The group's member that a receipt names: no receipt names one of another protocol."""
    return f"rocketmq-{member}"


class Recall(NamedTuple):
    """A delayed message."""

    receipt: str
    message_id: str

    @property
    def handle(self) -> str:
        """For clients."""
        return f"{self.receipt}{_SEPARATOR}{self.message_id}"

    @classmethod
    def parse(cls, handle: str) -> Recall:
        """Raises ReceiptInvalid."""
        receipt, separator, message_id = handle.partition(_SEPARATOR)
        if not separator or len(handle) > LENGTH_MAX:
            raise ReceiptInvalid("this handle is not one that a send gave: pass it as it came")
        return cls(receipt, message_id)


class Transaction(NamedTuple):
    """A half message of one topic: others have some with the same numbers."""

    receipt: HalfReceipt
    topic_id: UUID

    @property
    def text(self) -> str:
        """The transaction id, for clients."""
        return f"{self.receipt.text}{_SEPARATOR}{self.topic_id.hex}"

    @classmethod
    def parse(cls, text: str, topic_id: UUID) -> Transaction:
        """Raises ReceiptInvalid, also for one of another topic."""
        receipt, _separator, topic = text.partition(_SEPARATOR)
        if topic != topic_id.hex or len(text) > LENGTH_MAX:
            raise ReceiptInvalid(
                "this transaction id is not one of the topic: pass it as it came, with the topic"
                " to which the message was sent"
            )
        return cls(HalfReceipt.parse(receipt), topic_id)
