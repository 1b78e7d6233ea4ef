"""`headrace dump`: the contents of stored files, as JSON-compatible values.

Invariants: reads only. Yields one value per frame, batch, record, row or ledger, in stored order,
so that a file of any size is shown in bounded memory. Damage is shown in place and skipped.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import DataCorrupt, HeadraceError, RequestInvalid
from headrace.inspection.batches import FoundBatch, Gap, Read, batches_in
from headrace.inspection.decoders import marker_in, shown, state_or_error
from headrace.inspection.facts import decode as decode_fact
from headrace.log.footer import decode_footer
from headrace.metadata.fact_json import shown_fields
from headrace.metadata.issued_facts import ISSUED
from headrace.metadata.user_facts import SHARED_BY_BROKERS, USERS
from headrace.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_LOG_APPEND,
)
from headrace.records.codec import decode_batch, header_name_bytes
from headrace.records.compression import CODEC_NAMES
from headrace.storage.files.format import (
    APPEND,
    CREATE,
    DELETE,
    EXTEND,
    FOOTER_HEAD,
    FRAME_MAGIC,
    SEAL,
    SECTOR_BYTES,
    Frame,
    decode_folder,
    decode_frame,
)
from headrace.storage.files.format import decode_footer as decode_footer_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.inspection.decoders import Decode
    from headrace.inspection.folder import Folder
    from headrace.inspection.ledgers import Ledgers, StoredLedger
    from headrace.inspection.metadata_copy import MetadataRow

Line = dict[str, Any]
_KINDS = {
    APPEND: "append",
    CREATE: "create",
    SEAL: "seal",
    DELETE: "delete",
    EXTEND: "extend",
}


class RecordsWanted(NamedTuple):
    """Which records to show, and how."""

    is_wanted: bool = False
    decode: Decode | None = None
    """For records of an internal log."""


# --- batches and records -----------------------------------------------------------------------


def dump_batches(
    read: Read, start: int, end: int, wanted: RecordsWanted, boundaries: Iterable[int] = ()
) -> Iterator[Line]:
    """Yield the batches in a range of bytes, each followed by its records if requested."""
    for found in batches_in(read, start, end, sorted(boundaries)):
        if isinstance(found, Gap):
            yield {
                "type": "gap",
                "position": found.position,
                "size": found.end - found.position,
                "problem": found.problem,
            }
            continue
        yield batch_line(found)
        if wanted.is_wanted:
            yield from _records(found, wanted.decode)


def batch_line(batch: FoundBatch) -> Line:
    """The header of a batch."""
    header = batch.header
    codec = header.attributes & COMPRESSION_MASK
    line: Line = {
        "type": "batch",
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "codec": CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else f"unknown {codec}",
        "timestamp": header.max_timestamp_ms,
        "timestamp_type": "append" if header.attributes & TIMESTAMP_TYPE_LOG_APPEND else "create",
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
        "is_valid": batch.is_intact,
    }
    if header.producer_id != NO_PRODUCER_ID:
        line |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
        }
    if header.attributes & DELETE_HORIZON:
        line["delete_horizon"] = header.first_timestamp_ms
    if header.is_control and batch.is_intact:
        line |= _marker(batch)
    return line


def _marker(batch: FoundBatch) -> Line:
    try:
        return marker_in(batch) or {}
    except HeadraceError as error:
        return {"error": str(error)}


def _records(batch: FoundBatch, decode: Decode | None) -> Iterator[Line]:
    if batch.header.is_control or not batch.is_intact:
        return
    try:
        records = decode_batch(batch.data)
    except HeadraceError as error:
        yield {"type": "error", "position": batch.position, "problem": str(error)}
        return
    for record in records:
        line: Line = {
            "type": "record",
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": shown(record.key),
            "value": shown(record.value),
        }
        if record.headers:
            line["headers"] = [_header(name, value) for name, value in record.headers]
        state = state_or_error(record, decode)
        if state is not None:
            line["decoded"] = state
        yield line


def _header(name: str, value: bytes | None) -> Line:
    try:
        name.encode()
    except UnicodeEncodeError:  # its bytes are not UTF-8
        return {"key": shown(header_name_bytes(name)), "value": shown(value)}
    return {"key": name, "value": shown(value)}


# --- footers -------------------------------------------------------------------------------------


def footer_line(data: bytes) -> Line:
    """Dump the footer that a ledger was sealed with. Raises DataCorrupt, FormatUnsupported."""
    footer = decode_footer(data)
    index = footer.offset_index
    line: Line = {
        "type": "footer",
        "end_offset": footer.end_offset,
        "first_append_ms": footer.first_append_ms,
        "is_compacted": footer.is_compacted,
        "index": [
            {"offset": offset, "position": position, "max_timestamp": timestamp}
            for offset, position, timestamp in zip(
                index.offsets, index.positions, index.max_timestamps, strict=True
            )
        ],
        "producers": [
            shown(one) for one in sorted(chain.from_iterable(footer.producers.describe()))
        ],
    }
    if footer.aborted is not None:
        line["aborted"] = [
            {"producer_id": producer, "first_offset": first, "marker_offset": marker}
            for producer, first, marker in zip(
                footer.aborted.producer_ids,
                footer.aborted.first_offsets,
                footer.aborted.marker_offsets,
                strict=True,
            )
        ]
    return line


def footer_of_file(path: Path) -> Line:
    """Dump the footer in a separate file. Raises DataCorrupt, FormatUnsupported, OSError."""
    data = path.read_bytes()
    if len(data) < FOOTER_HEAD.size:
        raise DataCorrupt(f"{path} has {len(data)} bytes, fewer than a footer's header")
    _magic, _crc, ledger, end = FOOTER_HEAD.unpack_from(data)
    line = footer_line(decode_footer_file(data, ledger, end, str(path)))
    return {"type": "footer", "ledger": ledger, "end_position": end, **line}


# --- the write-ahead log -----------------------------------------------------------------------


def dump_journal(folder: Folder) -> Iterator[Line]:
    """Yield all valid frames of the write-ahead log with their entries, and the gaps between them.

    Raises RequestInvalid if the format file, which seeds the checksums, cannot be read.
    """
    data = folder.read("format")
    if data is None:
        raise RequestInvalid(f"{folder.full('format')} is missing: the frames cannot be checked")
    salt = decode_folder(data, "format")
    for name in folder.names("wal"):
        stem, _, suffix = name.partition(".")
        if suffix != "wal":
            continue
        file = folder.name(f"wal/{name}")
        content = folder.read(f"wal/{name}") or b""
        yield {"type": "file", "file": file, "size": len(content)}
        yield from _frames(content, file, salt, int(stem, 16))


def _frames(content: bytes, file: str, salt: int, generation: int) -> Iterator[Line]:
    view = memoryview(content)
    at = 0
    while at < len(content):
        frame = _frame_at(view, at, salt, generation)
        if frame is None:
            following = _next_frame(content, view, at, salt, generation)
            end = following.start if following is not None else len(content)
            rest = content[at:end]
            what = "zeros" if not rest.strip(b"\0") else "no valid frame here"
            yield {"type": "gap", "file": file, "position": at, "size": len(rest), "problem": what}
            if following is None:
                return
            frame = following
        yield {
            "type": "frame",
            "file": file,
            "position": frame.start,
            "size": frame.end - frame.start,
            "sequence": frame.sequence,
            "synced_sequence": frame.synced_sequence,
            "entries": [
                {
                    "kind": _KINDS.get(entry.kind, f"unknown {entry.kind}"),
                    "ledger": entry.ledger,
                    "position": entry.position,
                    "size": len(entry.payload),
                }
                for entry in frame.entries()
            ],
        }
        at = frame.end


def _frame_at(view: memoryview, at: int, salt: int, generation: int) -> Frame | None:
    aligned = -(-at // SECTOR_BYTES) * SECTOR_BYTES
    return decode_frame(view, at, salt, generation) or decode_frame(view, aligned, salt, generation)


def _next_frame(
    content: bytes, view: memoryview, at: int, salt: int, generation: int
) -> Frame | None:
    at = content.find(FRAME_MAGIC, at + 1)
    while at >= 0:
        frame = decode_frame(view, at, salt, generation)
        if frame is not None:
            return frame
        at = content.find(FRAME_MAGIC, at + 1)
    return None


# --- the folder ----------------------------------------------------------------------------------


def dump_ledgers(store: Ledgers) -> Iterator[Line]:
    """Yield every ledger of the folder, from the checkpoint and the write-ahead log."""
    for number in sorted(store.by_id):
        ledger = store.by_id[number]
        yield {
            "type": "ledger",
            "ledger": number,
            "file": store.folder.name(ledger.segment),
            "end": ledger.end,
            "durable": ledger.durable,
            "file_size": ledger.file_size,
            "is_sealed": ledger.is_sealed,
        }


def dump_ledger(store: Ledgers, ledger: StoredLedger, wanted: RecordsWanted) -> Iterator[Line]:
    """Dump one ledger as the broker would read it: segment, then write-ahead log, then its
    footer."""
    footer: Line | None = None
    if ledger.is_sealed:
        try:
            footer = footer_line(store.footer(ledger))
        except HeadraceError as error:
            footer = {"type": "error", "problem": str(error)}
    boundaries = [entry["position"] for entry in (footer or {}).get("index", ())]

    def read(position: int, size: int) -> bytes:
        return store.read(ledger, position, size)

    for line in dump_batches(read, 0, ledger.end, wanted, boundaries):
        yield {"ledger": ledger.id, **line}
    if footer is not None:
        yield {"ledger": ledger.id, **footer}


HIDDEN: Final = "(hidden: credentials)"
_SECRETS: Final = (USERS, SHARED_BY_BROKERS, *ISSUED)
"""Facts whose values are not shown: with the latter, anybody could log in as a broker."""


def metadata_line(row: MetadataRow) -> Line:
    """Dump one metadata row; its value is decoded if its key is known."""
    line: Line = {"type": "fact", "key": row.key, "version": row.version, "changed": row.changed_ms}
    if row.session is not None:
        line["session"] = row.session
    if row.value is None:
        return {**line, "is_deleted": True}
    line["is_valid"] = row.is_intact
    try:
        fact = decode_fact(row.key, row.value)
        if row.key.startswith(_SECRETS):
            return {**line, "value": HIDDEN}
        line["value"] = shown(row.value) if fact is None else shown_fields(fact)
    except HeadraceError as error:
        value = HIDDEN if row.key.startswith(_SECRETS) else shown(row.value)
        line |= {"value": value, "error": str(error)}
    return line
