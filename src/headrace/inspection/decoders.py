"""Decodes records of internal topics and companion logs, and transaction markers.

Invariants: bytes in, JSON-compatible values out. The formats belong to the state machines
(`coordination/*/state_records.py`); a record of an unknown format is shown undecoded.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.coordination.groups import state_records as group_records
from headrace.coordination.shares import lite_records
from headrace.coordination.shares import state_records as share_records
from headrace.coordination.transactions import state_records as transaction_records
from headrace.errors import HeadraceError
from headrace.metadata.facts import CompanionKind
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.records.marker import read_marker

if TYPE_CHECKING:
    from headrace.inspection.batches import FoundBatch
    from headrace.records.codec import Record

Decode = Callable[[bytes, bytes | None], Any]

_TOPICS: Final[dict[str, Decode]] = {
    OFFSETS_TOPIC: group_records.decode,
    TRANSACTIONS_TOPIC: transaction_records.decode,
}
_COMPANIONS: Final[dict[int, Decode]] = {
    CompanionKind.SHARES: share_records.decode,
    CompanionKind.LITE: lite_records.decode,
}


def decoder_of(topic: str | None, companion: int | None) -> Decode | None:
    """How to decode the records of a log; None if they are a client's own."""
    if companion is not None:
        return _COMPANIONS.get(companion)
    return None if topic is None else _TOPICS.get(topic)


def marker_in(batch: FoundBatch) -> dict[str, Any] | None:
    """Decode a control batch; None if it is not a transaction marker. Raises BatchCorrupt."""
    marker = read_marker(batch.data)
    if marker is None:
        return None
    return {
        "marker": "commit" if marker.is_commit else "abort",
        "coordinator_epoch": marker.coordinator_epoch,
    }


def state_in(record: Record, decode: Decode | None) -> dict[str, Any] | None:
    """Decode the state in a record of an internal log as JSON, or return None if its format is
    unknown.

    Raises RecordInvalid if the format is known and the record is damaged.
    """
    if decode is None or record.key is None:
        return None
    found = decode(record.key, record.value)
    if found is None:
        return None
    fields = shown(found)
    if isinstance(found, transaction_records.TransactionStored):
        fields["state"] = transaction_records.STATE_NAMES[found.state]
    return {"record": type(found).__name__, **fields}


def state_or_error(record: Record, decode: Decode | None) -> dict[str, Any] | None:
    """Like `state_in`, but returns the error as part of the value."""
    try:
        return state_in(record, decode)
    except HeadraceError as error:
        return {"error": str(error)}


def shown(value: Any) -> Any:
    """Convert a value for JSON: named tuples become objects, bytes become text or base64."""
    if isinstance(value, bytes):
        return _bytes_shown(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: shown(getattr(value, name)) for name in value._fields}
    if isinstance(value, frozenset | set):
        return sorted(shown(one) for one in value)
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    return value


def _bytes_shown(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
