"""The body of a settlement: which receipts, and what to do with each.

Invariants: pure. Bodies are checked here, not by the schema that is published: thousands of
receipts come in one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from headrace.broker.services.queue_receipts import ReceiptSettlements
from headrace.coordination.shares.commands import ACCEPT, REJECT, RELEASE, RENEW
from headrace.errors import RequestInvalid
from headrace.http.operations import Json, fields, integer, text
from headrace.http.problems import status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.errors import HeadraceError
    from headrace.http.schemas import Schema

SETTLEMENTS_MAX: Final = 10_000
REASON_LENGTH_MAX: Final = 1_000
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000
WAYS: Final = (("ack", ACCEPT), ("nack", RELEASE), ("extend", RENEW), ("dead_letter", REJECT))
_ONE: Final[dict[str, Schema]] = {
    "receipt": {"type": "string"},
    "delay_ms": integer(-1, DELAY_MS_MAX),
    "lock_ms": integer(-1, DELAY_MS_MAX),
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
    one = fields(["receipt"], **{name: _ONE[name] for name in _KNOWN[kind]})
    return {
        "type": "array",
        "maxItems": SETTLEMENTS_MAX,
        "items": {"anyOf": [{"type": "string"}, one]},
    }


SETTLE: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: _receipts(kind) for name, kind in WAYS},
}


def parse(body: Json) -> ReceiptSettlements:
    """What a body asks; nothing, if it has no receipts. Raises RequestInvalid."""
    unknown = sorted(set(body) - {name for name, _kind in WAYS})
    if unknown:
        raise RequestInvalid(f"unknown field {unknown[0][:50]!r}")
    asked = ReceiptSettlements()
    for name, kind in WAYS:
        for item in _items(body, name):
            if isinstance(item, str):
                asked.add(item, kind)
            else:
                receipt, delay_ms, reason = _fields(item, kind)
                asked.add(receipt, kind, delay_ms, reason)
    asked.finish()
    return asked


def _items(body: Json, name: str) -> list[str | Json]:
    items = body.get(name, [])
    if not isinstance(items, list) or len(items) > SETTLEMENTS_MAX:
        raise RequestInvalid(f"{name!r} is a list of at most {SETTLEMENTS_MAX}")
    if not all(isinstance(item, str | dict) for item in items):
        raise RequestInvalid(f"{name!r} holds receipts, or objects with one")
    return items


def _fields(item: Json, kind: int) -> tuple[str, int, str]:
    """(receipt, delay, reason) of an item that is more than a receipt. Raises RequestInvalid."""
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
