"""Receipts of deliveries, and what is done with them: acknowledged, released, extended, rejected.

Invariants: knows no protocol and no records. A receipt names one delivery, by partition, offset and
member; it is opaque to clients, and the only text that names this delivery. Each receipt has an
outcome of its own. Neighbours that are settled alike are sent to their owner as one range, which
costs a hundredth.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.queue_peers import MemberSettlements
from headrace.coordination.shares.commands import Settlement
from headrace.errors import ReceiptInvalid, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError

RECEIPT_LENGTH_MAX: Final = 200


def receipt_text(partition: int, offset: int, member: str) -> str:
    """The receipt of a delivery. It has ASCII letters, digits and dots only."""
    return f"{partition}.{offset}.{member}"


class Item(NamedTuple):
    """What is done with one receipt."""

    offset: int
    place: int
    """Among the receipts."""
    kind: int
    delay_ms: int
    reason: str


class ReceiptSettlements:
    """What a client does with its receipts, in one call."""

    __slots__ = ("_by_names", "deliveries", "receipts", "refused")

    def __init__(self) -> None:
        self.receipts: list[str] = []
        """In the order in which they were added."""
        self.refused: dict[int, HeadraceError] = {}
        """By place among the receipts: those that name no delivery, or are settled twice."""
        self.deliveries: dict[tuple[int, str], list[Item]] = {}
        """By partition and member; ascending by offset after `finish`."""
        self._by_names: dict[tuple[str, str], list[Item]] = {}

    def add(self, receipt: str, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        """Add a receipt; one that is malformed is refused, without an effect on others."""
        place = len(self.receipts)
        self.receipts.append(receipt)
        try:
            partition, offset, member = receipt.split(".")
            if not _is_number(offset) or len(offset) > 18 or len(receipt) > RECEIPT_LENGTH_MAX:
                raise ValueError
            items = self._by_names.get((partition, member))
            if items is None:
                items = self._by_names[partition, member] = self._begun(partition, member)
            # A third of the time of Item().
            items.append(tuple.__new__(Item, (int(offset), place, kind, delay_ms, reason)))
        except ValueError:
            self.refused[place] = ReceiptInvalid(
                "this receipt is not one that `receive` gave: settle with receipts as they came"
            )

    @classmethod
    def joined(cls, calls: Sequence[ReceiptSettlements]) -> ReceiptSettlements:
        """What several calls do, each of which is finished; no receipt is in two of them."""
        made = cls()
        for call in calls:
            begin = len(made.receipts)
            made.receipts += call.receipts
            made.refused.update({begin + place: why for place, why in call.refused.items()})
            for name, items in call.deliveries.items():
                placed = [one._replace(place=begin + one.place) for one in items]
                made.deliveries.setdefault(name, []).extend(placed)
        for items in made.deliveries.values():
            items.sort()
        return made

    def _begun(self, partition: str, member: str) -> list[Item]:
        """The items of one member on one partition. Raises ValueError."""
        is_valid = _is_number(partition) and len(partition) < 10
        if not (is_valid and member.isalnum() and member.isascii()):
            raise ValueError
        return self.deliveries.setdefault((int(partition), member), [])

    def finish(self) -> None:
        """Order the items, and refuse receipts that were added twice: nothing says which of both is
        meant."""
        for items in self.deliveries.values():
            items.sort()
            if len({item.offset for item in items}) == len(items):
                continue
            counts = Counter(item.offset for item in items)
            for item in items:
                if counts[item.offset] > 1:
                    self.refused[item.place] = ReceiptInvalid(
                        "this receipt is settled twice in one request, so none of it was done: "
                        "send it once"
                    )
            items[:] = [item for item in items if counts[item.offset] == 1]


def _is_number(text: str) -> bool:
    """Whether a text is a number as `receipt_text` writes it: other digits, or zeros before it,
    would be another text of the same delivery."""
    return text.isdigit() and text.isascii() and (text[0] != "0" or text == "0")


async def settle_receipts(
    owners: QueueOwners,
    topic: Topic,
    group_id: str,
    asked: ReceiptSettlements,
    member_id: Callable[[str], str],
) -> list[HeadraceError | None]:
    """One error or None for each receipt, in order. The records of a range that is refused are
    sent one by one.

    Why a delivery cannot be settled: DeliverySettled (this one was, in the same way, which most
    protocols call a success), DeliveryExpired (its lock ended), DeliveryTaken (another delivery
    holds the record), DeliveryFinished, DeliveryLost (what is known otherwise), DeliveryUnknown
    (never delivered), ReceiptInvalid (malformed, or settled twice in this call).

    `member_id(member)`: the group's member that a receipt names.
    """
    errors: list[HeadraceError | None] = [None] * len(asked.receipts)
    for place, refusal in asked.refused.items():
        errors[place] = refusal
    parts: list[_Part] = []
    for (number, name), items in asked.deliveries.items():
        if number < len(topic.partitions):
            parts.append((number, member_id(name), items))
            continue
        for item in items:
            errors[item.place] = ReceiptInvalid(
                f"this receipt is not one of topic {topic.name!r}, which has no partition {number}:"
                " settle with receipts as they came, on the topic from which they came"
            )
    refused = await _settle(owners, topic, group_id, parts, errors, ranges)
    await _settle(owners, topic, group_id, refused, errors, one_by_one)
    return errors


_Part = tuple[int, str, list[Item]]
"""(partition, member id, items)"""


async def _settle(
    owners: QueueOwners,
    topic: Topic,
    group_id: str,
    parts: Sequence[_Part],
    errors: list[HeadraceError | None],
    cut: Callable[[Sequence[Item]], list[Settlement]],
) -> list[_Part]:
    """Set `errors` of the items; returns those of ranges that were refused as a whole."""
    parts = [part for part in parts if part[2]]
    if not parts:
        return []
    deliveries = [MemberSettlements(number, member, cut(items)) for number, member, items in parts]
    outcomes = await owners.settle(topic, group_id, deliveries)
    again: list[_Part] = []
    for delivery, (number, member, items), found in zip(deliveries, parts, outcomes, strict=True):
        if not any(found):
            continue
        refused: list[Item] = []
        at = 0
        for (first, last, *_), error in zip(delivery.settlements, found, strict=True):
            run = items[at : at + last - first + 1]
            at += len(run)
            if len(run) > 1 and isinstance(error, Rejected):
                refused += run
            else:
                for item in run:
                    errors[item.place] = error
        again.append((number, member, refused))
    return again


def ranges(items: Sequence[Item]) -> list[Settlement]:
    """The settlements of the items; neighbours that are settled alike are one."""
    found: list[Settlement] = []
    offset, _place, kind, delay_ms, reason = items[0]
    first = last = offset
    alike = (kind, delay_ms, reason)
    for offset, _place, kind, delay_ms, reason in items[1:]:
        if offset == last + 1 and (kind, delay_ms, reason) == alike:
            last = offset
            continue
        found.append(Settlement(first, last, *alike))
        first = last = offset
        alike = (kind, delay_ms, reason)
    found.append(Settlement(first, last, *alike))
    return found


def one_by_one(items: Sequence[Item]) -> list[Settlement]:
    """The settlements of the items, each by itself."""
    return [Settlement(one.offset, one.offset, *one[2:]) for one in items]
