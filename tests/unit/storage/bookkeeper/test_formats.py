"""Bytes: frames of the wire, metadata in ZooKeeper, our own entries; whole, cut and garbled."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataCorrupt, FormatUnsupported, HeadraceError
from headrace.storage.bookkeeper import wire
from headrace.storage.bookkeeper.entries import (
    DATA,
    FRAGMENT,
    HEAD,
    INDEX_INTERVAL_BYTES,
    TRAILER,
    EntryIndex,
    end_after,
    pack_head,
    read_head,
    read_trailer,
    trailer_begin,
    trailer_entries,
)
from headrace.storage.bookkeeper.ledger_metadata import (
    BookieAddress,
    Ensemble,
    LedgerMetadata,
    LedgerState,
    address_in,
    decode_metadata,
    decode_service_info,
    encode_metadata,
    ledger_in,
    ledger_path,
)
from headrace.storage.bookkeeper.quorum import Quorum

KEY = wire.master_key(b"")


def hexed(kinds: str, *numbers: int) -> str:
    return struct.pack(">" + kinds, *numbers).hex()


# --- the wire ----------------------------------------------------------------------------------


def test_the_frames_of_requests_are_those_of_protocol_version_2():
    # Do not change: bookies read them.
    assert KEY.hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    add = wire.add_frame(1, 2, 0, 6, KEY, wire.FLAG_RECOVERY_ADD, b"abc")
    assert add[:8].hex() == "0000003f" + "02010002"
    assert add[8:28] == KEY
    assert add[28:60].hex() == hexed("qqqq", 1, 2, 0, 6)
    assert bytes(add[64:]) == b"abc"
    assert wire.read_frame(1, -1).hex() == "00000014" + "02020000" + hexed("q", 1) + "f" * 16
    fence = wire.fencing_read_frame(1, -1, KEY)
    assert fence.hex() == "00000028" + "02020005" + hexed("q", 1) + "f" * 16 + KEY.hex()
    batch = wire.batch_read_frame(1, 2, 3, 4, 5)
    assert batch.hex() == "00000028" + "02070000" + hexed("qqqiq", 1, 2, 3, 4, 5)


@given(st.binary(max_size=200), st.integers(0, 2**40), st.integers(0, 2**40))
def test_an_entry_is_known_by_its_digest_ledger_and_id(payload, ledger, entry):
    frame = wire.add_frame(ledger, entry, entry - 1, 10, KEY, 0, payload)
    data = memoryview(bytes(frame[28:]))
    assert wire.check_entry(ledger, entry, data) == (entry, entry - 1, 10, payload)
    assert wire.check_entry(ledger, wire.LAST_ADD_CONFIRMED, data) is not None
    assert wire.check_entry(ledger + 1, entry, data) is None
    assert wire.check_entry(ledger, entry + 1, data) is None
    assert wire.check_entry(ledger, entry, data[:-1]) is None
    garbled = bytearray(data)
    garbled[random.Random(ledger).randrange(len(garbled))] ^= 1
    assert wire.check_entry(ledger, entry, memoryview(bytes(garbled))) is None


@given(st.binary(max_size=80))
def test_a_garbled_response_is_malformed_and_nothing_else(data):
    view = memoryview(data)
    for read in (wire.decode_response, wire.batch_request_id, wire.batch_entries):
        try:
            read(view)
        except wire.MalformedFrame:
            pass


# --- metadata ----------------------------------------------------------------------------------

METADATA = LedgerMetadata(
    Quorum(3, 2, 2),
    (Ensemble(0, ("a:1", "b:2", "c:3")), Ensemble(7, ("a:1", "d:4", "c:3"))),
    state=LedgerState.CLOSED,
    length=1_000,
    last_entry=9,
    password=b"secret",
    created_ms=1_700_000_000_000,
    custom={"application": b"headrace", "partition": b"t-0"},
)


def test_metadata_are_written_as_bookkeeper_4_17_writes_them():
    # Do not change: stored.
    assert encode_metadata(METADATA).startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_metadata(encode_metadata(METADATA)) == METADATA
    open_one = LedgerMetadata(Quorum(1, 1, 1), (Ensemble(0, ("a:1",)),))
    assert encode_metadata(open_one).hex() == (
        b"BookieMetadataFormatVersion\t3\n".hex()
        + "24"  # the length of what follows
        + "08011001180020ffffffffffffffffff01280132070a03613a311000380342004801"
        + "6000"
    )


def test_metadata_name_the_bookies_of_an_entry():
    assert METADATA.ensemble_of(6) == ("a:1", "b:2", "c:3")
    assert METADATA.ensemble_of(7) == ("a:1", "d:4", "c:3")
    assert METADATA.bookies_of(5) == ["c:3", "a:1"]
    assert METADATA.bookies_of(7) == ["d:4", "c:3"]
    assert METADATA.ensemble_end(3) == 7
    assert METADATA.ensemble_end(7) is None
    replaced = METADATA.with_ensemble(Ensemble(7, ("x:1", "y:1", "z:1")))
    assert [one.first_entry for one in replaced.ensembles] == [0, 7]
    assert len(METADATA.with_ensemble(Ensemble(8, ("x:1", "y:1", "z:1"))).ensembles) == 3


@given(st.data())
def test_garbled_metadata_are_reported(data):
    whole = bytearray(encode_metadata(METADATA))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(1, len(whole))) :]
    try:
        decode_metadata(bytes(whole))
    except (DataCorrupt, FormatUnsupported):
        pass


def test_older_metadata_are_not_misread():
    with pytest.raises(FormatUnsupported):
        decode_metadata(b"BookieMetadataFormatVersion\t2\nquorumSize: 2")
    with pytest.raises(DataCorrupt):
        decode_metadata(b"something else")


@given(st.integers(0, 2**63 - 1))
def test_a_ledger_has_one_path_and_a_path_one_ledger(ledger):
    assert ledger_in(ledger_path("/ledgers", ledger)) == ledger


def test_paths_are_bookkeepers():
    assert ledger_path("/ledgers", 123_456_789) == "/ledgers/01/2345/L6789"
    assert ledger_path("/ledgers", 2**31 - 1) == "/ledgers/000/0000/0021/4748/L3647"
    for other in ("/ledgers/idgen/ID-0000000001", "/ledgers/available", "/ledgers/00/0000"):
        assert ledger_in(other) is None


def test_where_a_bookie_listens():
    assert address_in("10.0.0.1:3181") == BookieAddress("10.0.0.1", 3181)
    assert address_in("bookie-7") is None
    assert decode_service_info(b"") == (None, {})
    info = bytes.fromhex("32210a04" + b"main".hex() + "10ed181a06" + b"host-1".hex())
    info += bytes.fromhex("220a" + b"bookie-rpc".hex())
    info = info[:1] + bytes([len(info) - 2]) + info[2:]
    info += bytes.fromhex("3a0c0a04" + b"rack".hex() + "1204" + b"/one".hex())
    assert decode_service_info(info) == (BookieAddress("host-1", 3181), {"rack": "/one"})
    with pytest.raises(DataCorrupt):
        decode_service_info(b"\x32\x7f")


# --- our entries -------------------------------------------------------------------------------


def test_the_head_of_an_entry():
    # Do not change: stored.
    assert pack_head(DATA, 258, 7).hex() == "48720101" + hexed("qq", 258, 7)
    assert read_head(memoryview(pack_head(FRAGMENT, 5, 3))) == (FRAGMENT, 5, 3)
    with pytest.raises(DataCorrupt):
        read_head(memoryview(b"something of another's"))
    with pytest.raises(FormatUnsupported):
        read_head(memoryview(b"Hr\x02" + bytes(17)))


def test_where_a_ledger_ends_by_its_last_entry():
    assert end_after(memoryview(pack_head(DATA, 100, 40) + b"12345")) == 105
    assert end_after(memoryview(pack_head(FRAGMENT, 100, 40) + b"12345")) == 40
    assert end_after(memoryview(pack_head(TRAILER, 100, 100) + b"12345")) == 100


@given(st.lists(st.integers(1, 200_000), max_size=60), st.randoms())
def test_the_index_leads_to_an_entry_shortly_before_the_position(sizes, rng):
    index = EntryIndex()
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    order = list(enumerate(starts))
    if rng.random() < 0.5:
        rng.shuffle(order)  # as readers learn it
        in_order = False
    else:
        in_order = True
    for entry, start in order:
        index.add(entry, start)
    index = EntryIndex.decode(index.encode())
    for position in [*starts, *(start + 1 for start in starts)]:
        entry, begins = index.before(position)
        assert begins <= position
        assert begins == (starts[entry] if starts else 0)
        if in_order and sizes:
            holder = max(at for at, start in enumerate(starts) if start <= position)
            assert starts[holder] - begins < INDEX_INTERVAL_BYTES
        after = index.after(position)
        assert after is None or (after[1] > position and starts[after[0]] == after[1])


@given(st.binary(max_size=3_000), st.integers(0, 40), st.integers(60, 400))
def test_a_trailer_gives_back_index_and_footer(footer, entry_count, bytes_max):
    index = EntryIndex()
    for entry in range(entry_count):
        index.add(entry, entry * INDEX_INTERVAL_BYTES)
    end = entry_count * INDEX_INTERVAL_BYTES
    payloads = [memoryview(one) for one in trailer_entries(index, footer, end, 77, bytes_max)]
    assert all(len(one) <= bytes_max and end_after(one) == end for one in payloads)
    assert trailer_begin(payloads[-1]) == 77
    found, again = read_trailer(payloads)
    assert again == footer
    assert found.encode() == index.encode()


@given(st.binary(max_size=100))
def test_a_garbled_trailer_is_reported(data):
    tail = trailer_entries(EntryIndex(), b"footer", 0, 0, 1_000)[0]
    for garbled in (tail[: HEAD.size] + data, tail[:-1], tail + data):
        view = memoryview(garbled)
        try:
            trailer_begin(view)
            read_trailer([view])
        except HeadraceError:
            pass


def test_every_answer_of_a_bookie_is_named_in_words():
    own = [wire.TIMED_OUT, wire.DISCONNECTED, wire.OVERLOADED, wire.DAMAGED]
    for code in [wire.NO_LEDGER, wire.NO_ENTRY, *range(100, 108), *own]:
        assert "unknown code" not in wire.code_text(code)
        assert str(code) not in wire.code_text(code)
    assert wire.code_text(105) == "is read-only: its disks are full or have failed"
    assert wire.code_text(99) == "answered with the unknown code 99"
