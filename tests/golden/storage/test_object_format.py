"""The bytes of an object, spelled out. A change here is a change of the format: docs/FORMAT.md.

`HEADRACE_REWRITE_GOLDEN=1` prints what the code writes now, for the review of such a change.
"""

from __future__ import annotations

import asyncio
import os

import obstore
import pytest

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.runtime.clock import SystemClock
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering.blob_store import BlobLimits, BlobStore
from headrace.storage.tiering.object_format import (
    HEADER_SIZE,
    Layout,
    decode_header,
    decode_tail,
    encode_header,
    object_name,
)
from headrace.storage.tiering.tiered_store import TieredLedgerStore

# Ledger 1, "the bytes of a ledger", sealed with "its footer".
OBJECT = """
    48524f42 c700aa6a 01000000 00000400 01000000 00000000 15000000 00000000 0a000000
    01000000 00000000 00000000 00000000 00000000 00000000 00000000 74686520 62797465
    73206f66 2061206c 65646765 72697473 20666f6f 74657283 05dcb2cf 89611948 524f45ab
    50d0df08 00000001 000000
"""


async def offload(data: bytes, footer: bytes) -> bytes:
    objects = obstore.store.MemoryStore()
    store = TieredLedgerStore(
        MemoryLedgerStore(), BlobStore(objects, "memory", None, BlobLimits()), "c", SystemClock()
    )
    ledger = await store.create()
    _, done = store.append(ledger, [data], len(data), None)
    await done.wait()
    await store.seal(ledger, footer)
    await store.offload(ledger)
    await store.close()
    found = await obstore.get_async(objects, f"c/{object_name(ledger)}")
    return bytes(await found.bytes_async())


def test_the_object_of_a_ledger():
    stored = asyncio.run(offload(b"the bytes of a ledger", b"its footer"))
    if os.environ.get("HEADRACE_REWRITE_GOLDEN"):
        print(stored.hex(" ", -4))
    assert stored.hex(" ", -4) == " ".join(OBJECT.split())
    layout = decode_header(stored[:HEADER_SIZE], 1)
    assert layout == Layout(1, 21, 10, has_footer=True)
    assert stored[HEADER_SIZE : layout.footer_at] == b"the bytes of a ledger"
    assert stored[layout.footer_at : layout.index_at] == b"its footer"
    assert len(decode_tail(stored[layout.index_at :], layout)) == 2


def test_names_of_objects():
    assert object_name(1) == "ledgers/01/0000000000000001.ledger"
    assert object_name(0xABCDEF0123) == "ledgers/23/000000abcdef0123.ledger"


def test_an_object_of_a_newer_version_or_of_another_ledger_is_refused():
    header = bytearray(encode_header(Layout(1, 21, 10, has_footer=True)))
    with pytest.raises(DataCorrupt, match="holds ledger 1"):
        decode_header(header, 2)
    from crc32c import crc32c

    header[8] = 2
    header[4:8] = crc32c(header[8:]).to_bytes(4, "little")
    with pytest.raises(FormatUnsupported):
        decode_header(header, 1)
