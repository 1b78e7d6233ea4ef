"""Received messages, as the JSON texts that are sent.

Invariants: pure. Texts are made at once: an object for each message, and the encoder's walk over
it, took half of a receive's time.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from headrace.broker.services.queue_receipts import receipt_text
from headrace.http.records import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.queue_deliveries import Show
    from headrace.http.operations import Json
    from headrace.records.codec import Record

_quoted: Final[Callable[[str], str]] = encode_basestring
"""A text as JSON: what a JSONEncoder(ensure_ascii=False) calls, without its own call."""


def messages_for(member: str) -> Show[str]:
    """Makes the messages of one receive. `member`: the name of the receive in its receipts."""

    def show(partition: int, deliveries: int, records: Sequence[Record]) -> list[str]:
        middle = f'.{member}","partition":{partition},"deliveries":{deliveries},"offset":'
        texts: list[str] = []
        for record in records:
            if not record.headers:
                # Without a call for each message, which took a fifth of the time.
                key, value, offset = record.key, record.value, record.offset
                try:
                    shown_key = "null" if key is None else _quoted(key.decode())
                    shown_value = "null" if value is None else _quoted(value.decode())
                except UnicodeDecodeError:
                    pass
                else:
                    texts.append(
                        f'{{"receipt":"{partition}.{offset}{middle}{offset},'
                        f'"timestamp_ms":{record.timestamp_ms},"headers":[],'
                        f'"key":{shown_key},"value":{shown_value}}}'
                    )
                    continue
            message: Json = {
                "receipt": receipt_text(partition, record.offset, member),
                "partition": partition,
                "deliveries": deliveries,
            }
            texts.append(
                json.dumps(message | shown(record), ensure_ascii=False, separators=(",", ":"))
            )
        return texts

    return show
