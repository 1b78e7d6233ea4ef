"""The bytes on disk, spelled out. A change here is a change of the format: docs/FORMAT.md.

`HEADRACE_REWRITE_GOLDEN=1` prints what the code writes now, for the review of such a change.
"""

from __future__ import annotations

import os

from headrace.storage.files.format import (
    APPEND,
    CREATE,
    DELETE,
    ENTRY,
    EXTEND,
    SEAL,
    Checkpoint,
    LedgerRow,
    decode_checkpoint,
    decode_folder,
    decode_footer,
    decode_frame,
    encode_checkpoint,
    encode_folder,
    encode_footer,
    encode_frame_head,
)
from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.scenario import abandon, open_store

SALT = 0x5EED5A17


def same(found: bytes, golden: str) -> None:
    if os.environ.get("HEADRACE_REWRITE_GOLDEN"):
        print(found.hex(" ", -4))
    assert found.hex(" ", -4) == " ".join(golden.split())


def frame_bytes() -> bytes:
    body = [b"hello", b"", b"footer", b""]
    entries = (
        ENTRY.pack(APPEND, 5, 7, 4096)
        + ENTRY.pack(CREATE, 0, 8, 0)
        + ENTRY.pack(SEAL, 6, 6, 12)
        + ENTRY.pack(DELETE, 0, 5, 99)
    )
    return encode_frame_head(SALT, 3, 1_000, 998, entries, body) + b"".join(body)


def test_a_wal_frame():
    same(frame_bytes(), FRAME)
    frame = decode_frame(memoryview(frame_bytes()), 0, SALT, 3)
    assert (frame.sequence, frame.synced_sequence, frame.entry_count) == (1_000, 998, 4)
    assert [(e.kind, e.ledger, e.position, bytes(e.payload)) for e in frame.entries()] == [
        (APPEND, 7, 4096, b"hello"),
        (CREATE, 8, 0, b""),
        (SEAL, 6, 12, b"footer"),
        (DELETE, 5, 99, b""),
    ]


def test_the_entry_that_gives_a_bulk_its_length():
    entry = ENTRY.pack(EXTEND, 0, 7, 1 << 40)
    same(entry, "05000000 00000000 07000000 00000000 00000000 00010000")


def test_the_checkpoint():
    rows = (LedgerRow(1, 123_456_789_012, False), LedgerRow(9, 77, True))
    checkpoint = Checkpoint(5, 4_242, 10, rows)
    same(encode_checkpoint(checkpoint), CHECKPOINT)
    assert decode_checkpoint(encode_checkpoint(checkpoint), "checkpoint") == checkpoint


def test_a_footer():
    same(encode_footer(6, 12, b"footer"), FOOTER)
    assert decode_footer(encode_footer(6, 12, b"footer"), 6, 12, "x") == b"footer"


def test_the_format_file():
    same(encode_folder(SALT), FOLDER)
    assert decode_folder(encode_folder(SALT), "format") == SALT


async def test_the_layout_of_a_folder():
    disk = ModelDisk()
    store = await open_store(disk)
    ledger = await store.create()
    _, completion = store.append(ledger, [b"some ", b"bytes"], 10, None)
    await completion.wait()
    await store.seal(ledger, b"footer")
    # Small appends wait in memory for their file; the log has them.
    large = await store.create()
    _, completion = store.append(large, [b"large" * 2_000], 10_000, None)
    await completion.wait()
    await abandon(store)
    files = {
        f"{folder}/{name}": bytes(disk.inodes[inode])
        for folder, names in disk.names.items()
        for name, inode in names.items()
    }
    assert sorted(files) == [
        "data/checkpoint",
        "data/format",
        "data/ledgers/01/0000000000000001.footer",
        "data/ledgers/02/0000000000000002.ledger",
        "data/lock",
        "data/wal/0000000000000002.wal",
        "data/wal/0000000000000003.wal",
    ]
    assert files["data/ledgers/02/0000000000000002.ledger"] == b"large" * 2_000
    same(files["data/format"], FOLDER)
    same(files["data/ledgers/01/0000000000000001.footer"], SMALL_FOOTER)
    wal = files["data/wal/0000000000000002.wal"]
    same(wal[:64], FIRST_FRAME)
    assert wal[64:512] == bytes(448), "a frame behind a sync begins at the next sector"
    same(wal[512:586], SECOND_FRAME)


FRAME = """
48525746 7b3f4e5d 6b000000 04000000 03000000 00000000 e8030000 00000000
e6030000 00000000 01000000 05000000 07000000 00000000 00100000 00000000
02000000 00000000 08000000 00000000 00000000 00000000 03000000 06000000
06000000 00000000 0c000000 00000000 04000000 00000000 05000000 00000000
63000000 00000000 68656c6c 6f666f6f 746572
"""
CHECKPOINT = """
48524350 0223f757 01000000 00000000 05000000 00000000 92100000 00000000
0a000000 00000000 02000000 00000000 01000000 00000000 141a99be 1c000000
00000000 00000000 09000000 00000000 4d000000 00000000 01000000 00000000
"""
FOOTER = """
48524654 e3c91fb4 06000000 00000000 0c000000 00000000 666f6f74 6572
"""
FOLDER = """
68656164 72616365 01000000 175aed5e a8d5244e
"""
SMALL_FOOTER = """
48524654 7bbf65d8 01000000 00000000 0a000000 00000000 666f6f74 6572
"""
FIRST_FRAME = """
48525746 ca2c965d 18000000 01000000 02000000 00000000 01000000 00000000
00000000 00000000 02000000 00000000 01000000 00000000 00000000 00000000
"""
SECOND_FRAME = """
48525746 8fad3e3a 22000000 01000000 02000000 00000000 02000000 00000000
01000000 00000000 01000000 0a000000 01000000 00000000 00000000 00000000
736f6d65 20627974 6573
"""
