"""Formats that need no folder: facts, entries, objects, metadata of ledgers.

Invariants: each part is one example with a value in every field. A stored example must be read with
its original meaning; this version must also write its own example with identical bytes.
"""

from __future__ import annotations

import importlib.util
import json
from array import array
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError
from headrace.metadata import config_facts, facts, load_facts
from headrace.metadata.fact_json import FactReader, encode_fact
from headrace.storage.bookkeeper import entries
from headrace.storage.bookkeeper.entry_builder import EntryBuilder
from headrace.storage.bookkeeper.wire import PAYLOAD_AT
from headrace.storage.tiering import object_format
from headrace_verify.rng import seeded
from headrace_verify.upgrade.findings import differences

if TYPE_CHECKING:
    from collections.abc import Callable

_ID = UUID("0123456789abcdef0123456789abcdef")
_LEDGER = 0xABCDEF
_NEWER = {"newer": {"a": [1, "b", None]}}


class Part(NamedTuple):
    """One example."""

    name: str
    encode: Callable[[], bytes]
    show: Callable[[bytes], Any]
    """Decode its stored bytes to plain values. Raises HeadraceError."""
    needs: str = ""
    """A module that may not be installed."""


def has_module(name: str) -> bool:
    """Whether an optional package is installed."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda one: one.hex))


def _shown(kind: Any) -> Callable[[bytes], Any]:
    return lambda stored: _plain(asdict(kind.decode(stored)))


def _links() -> list[facts.LedgerLink]:
    sealed = facts.LedgerLink(7, 100, 2, 1_000, 4_096, 150, 2_000, 3_000, 4_000, dict(_NEWER))
    return [sealed, facts.LedgerLink(9, 150, 3)]


def _rates() -> list[load_facts.PartitionRate]:
    return [load_facts.PartitionRate(_ID, 2, 900, dict(_NEWER))]


def _moves() -> list[load_facts.MovedPartition]:
    return [load_facts.MovedPartition(_ID, 2, 1, 1_700_000_000_000, dict(_NEWER))]


def _fact(kind: Any, *values: Any) -> Part:
    fact = kind(*values, unknown=dict(_NEWER))
    return Part(f"fact {kind.__name__}", fact.encode, _shown(kind))


def _show_next_producer(stored: bytes) -> Any:
    reader = FactReader.parse("next producer id", stored)
    return {"next": reader.integer("next", 0), "unknown": _plain(reader.rest())}


def _encode_entries() -> bytes:
    """A ledger's entries: small appends, one larger than an entry, two notes, the trailer."""
    builder = EntryBuilder(entry_bytes_max=200, entry_bytes_target=120)
    rng = seeded("entries")
    previous = -1
    for size in (10, 40, 100, 700, 1, 150):
        data = rng.randbytes(size)
        builder.append([data], size)
        builder.end_turn()
        if size in {100, 1}:
            builder.flush()
            note = rng.randbytes(2 * size)
            first = len(builder.queue)
            builder.add_beside(entries.checkpoint_entries(note, builder.end, first, previous, 200))
            previous = len(builder.queue) - 1
    builder.flush()
    index = entries.EntryIndex()
    index.add(5, 70_000)
    index.add(9, 200_000)
    count = len(builder.queue)
    builder.add_beside(entries.trailer_entries(index, rng.randbytes(300), builder.end, count, 200))
    return json.dumps([bytes(one.frame[PAYLOAD_AT:]).hex() for one in builder.queue]).encode()


def _show_entries(stored: bytes) -> Any:
    payloads = [memoryview(bytes.fromhex(one)) for one in json.loads(stored)]
    heads = [entries.read_head(payload) for payload in payloads]
    data = b""
    for head, payload in zip(heads, payloads, strict=True):
        if head.kind in {entries.DATA, entries.FRAGMENT}:
            if head.position != len(data):
                return f"an entry begins at {head.position}, after {len(data)} bytes"
            data += payload[entries.HEAD.size :]
    notes = []
    for at, head in enumerate(heads):
        if head.kind == entries.CHECKPOINT:
            begin, previous = entries.checkpoint_links(payloads[at])
            text = entries.read_checkpoint_data(payloads[begin : at + 1]).hex()
            notes.append([begin, previous, text])
    first = entries.trailer_begin(payloads[-1])
    index, footer = entries.read_trailer(payloads[first:])
    return {
        "bytes": data.hex(),
        "heads": [list(head) for head in heads],
        "ends": [entries.end_after(payload) for payload in payloads],
        "notes": notes,
        "footer": footer.hex(),
        "index": [list(index.before(at)) for at in (0, 69_999, 70_000, 300_000)],
    }


def _encode_object() -> bytes:
    footer = b"what was given to seal"
    data = b"the bytes of a ledger"
    layout = object_format.Layout(_LEDGER, len(data), len(footer), has_footer=True)
    crcs = array("I", [object_format.block_crc(_LEDGER, 0, data)])
    tail = object_format.encode_tail(layout, crcs, footer)
    return object_format.encode_header(layout) + data + footer + tail


def _show_object(stored: bytes) -> Any:
    layout = object_format.decode_header(stored[: object_format.HEADER_SIZE], _LEDGER)
    crcs = object_format.decode_tail(stored[layout.index_at :], layout)
    data = stored[object_format.HEADER_SIZE : layout.footer_at]
    footer = stored[layout.footer_at : layout.index_at]
    return {
        "name": object_format.object_name(_LEDGER),
        "layout": list(layout),
        "data": data.decode(),
        "footer": footer.decode(),
        "is_intact": list(crcs)
        == [
            object_format.block_crc(_LEDGER, 0, data),
            object_format.footer_crc(_LEDGER, footer),
        ],
    }


def _encode_ledger_metadata() -> bytes:
    from headrace.storage.bookkeeper import ledger_metadata
    from headrace.storage.bookkeeper.quorum import Quorum

    ensembles = (
        ledger_metadata.Ensemble(0, ("bookie-1:3181", "bookie-2:3181", "bookie-3:3181")),
        ledger_metadata.Ensemble(42, ("bookie-1:3181", "bookie-4:3181", "bookie-3:3181")),
    )
    return ledger_metadata.encode_metadata(
        ledger_metadata.LedgerMetadata(
            Quorum(3, 2, 2),
            ensembles,
            ledger_metadata.LedgerState.CLOSED,
            length=12_345,
            last_entry=99,
            password=b"none",
            created_ms=1_700_000_000_000,
            custom={"headrace": b"1"},
            creator=77,
        )
    )


def _show_ledger_metadata(stored: bytes) -> Any:
    from headrace.storage.bookkeeper.ledger_metadata import decode_metadata

    return _plain(json.loads(json.dumps(asdict(decode_metadata(stored)), default=_text_of)))


def _text_of(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else getattr(value, "name", str(value))


PARTS = (
    _fact(facts.TopicFact, "orders", _ID, 3, 1, {"retention.ms": "1"}, 1_700_000_000_000),
    _fact(facts.PartitionFact, 120, 3, _links()),
    _fact(facts.OwnerFact, 2, "life", 5),
    _fact(facts.PinFact, 4),
    _fact(facts.BrokerFact, 1, "kafka.host", 9092, "http.host", 9180, 1_000, "rack", "life", 1),
    _fact(config_facts.BrokerConfigFact, {"log.retention.ms": "1"}),
    _fact(load_facts.LoadFact, "life", 1_000, 2_000, 350, _rates()),
    _fact(load_facts.MovesFact, _moves()),
    _fact(facts.ClusterFact, "AAAAAAAAAAAAAAAAAAAAAA"),
    Part(
        "fact next producer id", lambda: encode_fact({"next": 2000} | _NEWER), _show_next_producer
    ),
    Part("entries of a ledger", _encode_entries, _show_entries),
    Part("object of a ledger", _encode_object, _show_object),
    Part(
        "metadata of a ledger",
        _encode_ledger_metadata,
        _show_ledger_metadata,
        "google.protobuf",
    ),
)


def describe_parts() -> tuple[dict[str, Any], list[str]]:
    """Return (each part's bytes and meaning, what was skipped and why)."""
    found, skipped = {}, []
    for part in PARTS:
        if part.needs and not has_module(part.needs):
            skipped.append(f"{part.name}: {part.needs} is not installed")
            continue
        stored = part.encode()
        found[part.name] = {"bytes": stored.hex(), "means": part.show(stored)}
    return found, skipped


def check_parts(stored: dict[str, Any], *, is_own: bool) -> tuple[list[str], int, list[str]]:
    """Return (the problems, how many were checked, what was skipped and why) of a set's parts.

    `is_own`: this version has written them, so it must write them identically.
    """
    wrong, checked, skipped = [], 0, []
    by_name = {part.name: part for part in PARTS}
    for name, known in stored.items():
        part = by_name.get(name)
        if part is None:
            wrong.append(f"{name}: no reader in this version")
            continue
        if part.needs and not has_module(part.needs):
            skipped.append(f"{name}: {part.needs} is not installed")
            continue
        data = bytes.fromhex(known["bytes"])
        try:
            means = part.show(data)
        except (HeadraceError, ValueError, KeyError) as error:
            wrong.append(f"{name}: cannot be read: {error}")
            continue
        wrong += differences(name, known["means"], means)[:5]
        if is_own and part.encode() != data:
            wrong.append(
                f"{name}: is written with different bytes under the same version; if that is"
                " intended and the version not released, run `headrace verify upgrade"
                " --write-golden`"
            )
        checked += 1
    return wrong, checked, skipped
