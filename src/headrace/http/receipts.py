"""Receipts, and the body of a settlement: which deliveries, and what to do with each.

Invariants: pure; nothing here is a record or a broker. A receipt names one delivery: who got which
record; it is opaque to clients. Bodies are checked here, not by the schema that is published:
thousands of receipts come in one.
"""

from __future__ import annotations

import json
from collections import Counter
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.commands import ACCEPT, REJECT, RELEASE, RENEW, Settlement
from headrace.errors import RequestInvalid
from headrace.http.operations import Json, text
from headrace.http.problems import Contradiction, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.errors import HeadraceError
    from headrace.http.schemas import Schema

RECEIPT_LENGTH_MAX: Final = 200
SETTLEMENTS_MAX: Final = 10_000
REASON_LENGTH_MAX: Final = 1_000
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000
WAYS: Final = (("ack", ACCEPT), ("nack", RELEASE), ("extend", RENEW), ("dead_letter", REJECT))
_ONE: Final[dict[str, Schema]] = {
    "receipt": {"type": "string"},
    "delay_ms": {"type": "integer", "minimum": -1, "maximum": DELAY_MS_MAX},
    "lock_ms": {"type": "integer", "minimum": -1, "maximum": DELAY_MS_MAX},
    "reason": text(REASON_LENGTH_MAX),
}
_KNOWN: Final = {
    ACCEPT: ("receipt",),
    RELEASE: ("receipt", "delay_ms", "reason"),
    RENEW: ("receipt", "lock_ms"),
    REJECT: ("receipt", "reason"),
}
"""The fields that have an effect, by kind."""


def _receipts(kind: int) -> Schema:
    """The schema of the items that are settled in one way."""
    one: Schema = {
        "type": "object",
        "required": ["receipt"],
        "additionalProperties": False,
        "properties": {name: _ONE[name] for name in _KNOWN[kind]},
    }
    return {
        "type": "array",
        "maxItems": SETTLEMENTS_MAX,
        "items": {"anyOf": [{"type": "string"}, one]},
    }


SETTLE: Final[Schema] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {name: _receipts(kind) for name, kind in WAYS},
}

quoted: Final[Callable[[str], str]] = encode_basestring
"""A text as JSON: what a JSONEncoder(ensure_ascii=False) calls, without its own call."""


def receipt_text(partition: int, offset: int, member: str) -> str:
    """The receipt of a delivery. Nothing in it is escaped in JSON."""
    return f"{partition}.{offset}.{member}"


class Item(NamedTuple):
    """One receipt of a body."""

    offset: int
    place: int
    """Among the receipts of the body."""
    kind: int
    delay_ms: int
    reason: str


class Asked:
    """What a body asks for."""

    __slots__ = ("deliveries", "receipts", "refused")

    def __init__(self) -> None:
        self.receipts: list[str] = []
        """As they came."""
        self.refused: dict[int, HeadraceError] = {}
        """By place among the receipts: those that name no delivery, or are settled twice."""
        self.deliveries: dict[tuple[int, str], list[Item]] = {}
        """By partition and member; ascending by offset."""


def parse(body: Json) -> Asked:
    """Raises RequestInvalid."""
    if not body:
        raise RequestInvalid("nothing to settle: name receipts in ack, nack, extend or dead_letter")
    unknown = sorted(set(body) - {name for name, _kind in WAYS})
    if unknown:
        raise RequestInvalid(f"unknown field {unknown[0][:50]!r}")
    asked = Asked()
    receipts = asked.receipts
    by_names: dict[tuple[str, str], list[Item]] = {}
    for name, kind in WAYS:
        for item in _items(body, name):
            delay_ms, reason = -1, ""
            if isinstance(item, str):
                receipt = item
            else:
                receipt, delay_ms, reason = _fields(item, kind)
            try:
                partition, offset, member = receipt.split(".")
                if not offset.isdigit() or len(offset) > 18 or len(receipt) > RECEIPT_LENGTH_MAX:
                    raise ValueError
                items = by_names.get((partition, member))
                if items is None:
                    items = by_names[partition, member] = _begun(asked, partition, member)
                items.append(_item((int(offset), len(receipts), kind, delay_ms, reason)))
            except ValueError:
                asked.refused[len(receipts)] = Contradiction(
                    "this receipt is not one that `receive` gave: settle with receipts as they came"
                )
            receipts.append(receipt)
    for items in asked.deliveries.values():
        items.sort()
        if len({item.offset for item in items}) < len(items):
            items[:] = _once(asked, items)
    return asked


def _begun(asked: Asked, partition: str, member: str) -> list[Item]:
    """The items of one member on one partition. Raises ValueError."""
    if not (
        partition.isdigit()
        and len(partition) < 10
        and member.isalnum()
        and (partition + member).isascii()
    ):
        raise ValueError
    return asked.deliveries.setdefault((int(partition), member), [])


def _item(fields: tuple[int, int, int, int, str]) -> Item:
    return tuple.__new__(Item, fields)  # a third of the time of Item()


def _once(asked: Asked, items: Sequence[Item]) -> list[Item]:
    """Without the receipts that are settled twice: nothing says which of both is meant."""
    counts = Counter(item.offset for item in items)
    for item in items:
        if counts[item.offset] > 1:
            asked.refused[item.place] = Contradiction(
                "this receipt is settled twice in one request, so none of it was done: send it once"
            )
    return [item for item in items if counts[item.offset] == 1]


def _items(body: Json, name: str) -> list[str | Json]:
    items = body.get(name, [])
    if not isinstance(items, list) or len(items) > SETTLEMENTS_MAX:
        raise RequestInvalid(f"{name!r} is a list of at most {SETTLEMENTS_MAX}")
    if not all(isinstance(item, str | dict) for item in items):
        raise RequestInvalid(f"{name!r} holds receipts, or objects with one")
    return items


def _fields(item: Json, kind: int) -> tuple[str, int, str]:
    """(receipt, delay, reason) of an item that is no receipt alone. Raises RequestInvalid."""
    known = _KNOWN[kind]
    for name in item:
        if name not in known:
            allowed = ", ".join(known)
            raise RequestInvalid(f"unknown field {name[:50]!r}: such an item has {allowed}")
    delay_ms = _integer(item, "lock_ms" if kind == RENEW else "delay_ms", -1, -1, DELAY_MS_MAX)
    reason = item.get("reason", "")
    if not isinstance(reason, str) or len(reason) > REASON_LENGTH_MAX:
        raise RequestInvalid(f"'reason' is text of at most {REASON_LENGTH_MAX} characters")
    receipt = item.get("receipt")
    if not isinstance(receipt, str):
        raise RequestInvalid("an item lacks the text 'receipt'")
    return receipt, delay_ms, reason


def _integer(body: Json, name: str, default: int, low: int, high: int) -> int:
    value = body.get(name, default)
    if isinstance(value, float) and value.is_integer():  # 1.0 is an integer in JSON Schema
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise RequestInvalid(f"{name!r} is an integer from {low} to {high}")
    return value


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


def results(receipts: Sequence[str], errors: Sequence[HeadraceError | None]) -> bytes:
    """The response to a settlement."""
    texts = [
        f'{{"receipt":"{receipt}","ok":true}}' if error is None else _refused(receipt, error)
        for receipt, error in zip(receipts, errors, strict=True)
    ]
    return f'{{"results":[{",".join(texts)}]}}'.encode()


def _refused(receipt: str, error: HeadraceError) -> str:
    status, next_step = status_of(error)
    found = {
        "receipt": receipt,
        "ok": False,
        "error": str(error),
        "retriable": status == 503,
        "next_step": next_step,
    }
    return json.dumps(found, separators=(",", ":"))  # it may be no text that UTF-8 could hold
