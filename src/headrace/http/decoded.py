"""Decoded values beside records, where a request asks for them.

Invariants: a record stays as it is; what is added says what its value is by its schema, or why that
cannot be said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.schemas.decoding import DecodedValue, Value
from headrace.schemas.errors import SchemasNotConfigured
from headrace.schemas.wire import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.broker.services.services import Services
    from headrace.http.operations import Call, Json
    from headrace.http.schemas import Schema
    from headrace.records.codec import Record

DECODE: Final[dict[str, Schema]] = {
    "decode": {
        "type": "string",
        "enum": ["schema"],
        "description": "Also return values as JSON by their schemas (`decoded`, `undecodable`).",
    }
}


def check_decode(services: Services, call: Call) -> None:
    """Raises SchemasNotConfigured if `decode` is asked for and the broker knows no schemas."""
    if "decode" in call.query and services.decoded_values is None:
        raise SchemasNotConfigured(
            "this broker knows neither a registry nor a folder of schemas: it decodes no values"
        )


async def add_decoded(
    services: Services,
    call: Call,
    topics: Iterable[str],
    records: Sequence[Record],
    shown: Sequence[Json],
) -> None:
    """Add `decoded` or `undecodable` to each of `shown` whose record has a value; `topics`: of each
    record. Nothing is added unless the request asks for it. Raises StorageUnavailable."""
    decoder = services.decoded_values
    if "decode" not in call.query or decoder is None:
        return
    values = [_value(*one) for one in zip(topics, records, strict=True)]
    for place, outcome in zip(shown, await decoder.decode(values), strict=True):
        if isinstance(outcome, DecodedValue):
            names = {"format": outcome.format, "schema": outcome.schema}
            place["decoded"] = {**names, "json": outcome.text}
        elif outcome is not None:
            place["undecodable"] = outcome


def _value(topic: str, record: Record) -> Value | None:
    if record.value is None:
        return None
    return Value(topic, record.value, [one for one in record.headers if one[0] == HEADER])
