"""Data of a newer Headrace: rejected where it must be, preserved where it may be.

Invariants: works on copies of a stopped folder of this version's own set. An increased version is
rejected with a message, and the folder stays unchanged, byte for byte. A field, key or record that
is merely unknown is preserved through everything that this version rewrites.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from array import array
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from headrace.broker.node import Node
from headrace.errors import FormatUnsupported, HeadraceError
from headrace.log.footer import VERSION as FOOTER_VERSION
from headrace.metadata.facts import (
    BROKERS,
    DRAINING,
    OWNERS,
    PARTITIONS,
    PINS,
    TOPICS,
    BrokerFact,
    OwnerFact,
    PinFact,
    partition_key,
)
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.store import ANY
from headrace.records.codec import Record, encode_batch
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.storage.bookkeeper import entries
from headrace.storage.files import format as layouts
from headrace.storage.ledger import LedgerId
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering import object_format, recipe_format
from headrace_verify.crash.data_folder import SlowClock
from headrace_verify.crash.power_broker import SeededRandomness
from headrace_verify.upgrade.findings import Findings
from headrace_verify.upgrade.make import append, batch_of
from headrace_verify.upgrade.opened import (
    CONFIG,
    METADATA,
    WAL_FILE_BYTES,
    everything,
    facts_in,
    opened,
)
from headrace_verify.upgrade.parts import has_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEWER = {"newer": {"a": [1, "b"]}}
SETTING = "newer.setting"
NEXT_STEP = re.compile(r"start a newer one|(use|start) the version")
_PASSING = {"lock", f"{METADATA}-shm", f"{METADATA}-wal"}


# --- increased versions ----------------------------------------------------------------------


def _format(folder: Path) -> None:
    path = folder / "format"
    magic, version, salt, _ = layouts.FOLDER.unpack(path.read_bytes())
    head = layouts.FOLDER.pack(magic, version + 1, salt, 0)[:-4]
    path.write_bytes(head + crc32c(head).to_bytes(4, "little"))


def _checkpoint(folder: Path) -> None:
    path = folder / "checkpoint"
    data = bytearray(path.read_bytes())
    data[8:12] = (layouts.FORMAT_VERSION + 1).to_bytes(4, "little")
    data[4:8] = crc32c(bytes(data[8:])).to_bytes(4, "little")
    path.write_bytes(data)


def _write_ahead_log(folder: Path) -> None:
    """A frame after the checkpoint, with an entry of a future kind."""
    salt = layouts.decode_folder((folder / "format").read_bytes(), "format")
    checkpoint = layouts.decode_checkpoint((folder / "checkpoint").read_bytes(), "checkpoint")
    path = folder / "wal" / f"{checkpoint.wal_number:016x}.wal"
    data = bytearray(WAL_FILE_BYTES)
    entry = layouts.ENTRY.pack(9, 0, 1, 0)
    sequence = checkpoint.sequence + 1
    head = layouts.encode_frame_head(salt, checkpoint.wal_number, sequence, 0, entry, [])
    data[: len(head)] = head
    path.write_bytes(data)


def _sqlite(folder: Path) -> None:
    base = sqlite3.connect(folder / METADATA)
    base.execute("PRAGMA user_version = 2")
    base.close()


def _topic_fact(folder: Path) -> None:
    _rewrite_facts(folder, TOPICS, lambda fact: {**fact, "v": 2})


def _partition_fact(folder: Path) -> None:
    _rewrite_facts(folder, PARTITIONS, lambda fact: {**fact, "v": 3})


def _footer(folder: Path) -> None:
    for path in folder.rglob("*.footer"):
        data = path.read_bytes()
        _, _, ledger, end = layouts.FOOTER_HEAD.unpack_from(data)
        footer = bytearray(layouts.decode_footer(data, ledger, end, path.name))
        footer[0] = FOOTER_VERSION + 1
        path.write_bytes(layouts.encode_footer(ledger, end, footer))


def _rewrite_facts(
    folder: Path, prefix: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Change stored facts offline, with correct checksums."""
    base = sqlite3.connect(folder / METADATA)
    rows = base.execute("SELECT key, value, version FROM facts WHERE value IS NOT NULL").fetchall()
    for key, value, version in rows:
        if key.startswith(prefix):
            new = json.dumps(change(json.loads(value)), separators=(",", ":")).encode()
            crc = crc32c(new, crc32c(f"{version} {key}".encode()))
            base.execute("UPDATE facts SET value = ?, crc = ? WHERE key = ?", (new, crc, key))
    base.commit()
    base.close()


UNTOUCHED = (_format, _checkpoint, _write_ahead_log)
"""Version changes with which the folder cannot be opened at all."""
NOT_SERVED = (_sqlite, _topic_fact, _partition_fact)
"""Those detected while reading the write-ahead log: nothing is served, no ledger is deleted."""
PARTITIONS_ALONE = (_footer,)
"""Those of partitions: the partitions are not served, but the broker runs."""


def _bytes_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in _PASSING
    }


def _lasting(files: dict[str, str]) -> dict[str, str]:
    return {
        path: content
        for path, content in files.items()
        if not path.startswith("wal/") and path != "checkpoint"
    }


async def check_refusals(stopped: Path, work: Path) -> Findings:
    """Increase one version after another; each is rejected with a message, and changes nothing."""
    found = Findings("a newer version")
    for raise_it in (*UNTOUCHED, *NOT_SERVED, *PARTITIONS_ALONE):
        name = raise_it.__name__.strip("_").replace("_", " ")
        folder = work / name.replace(" ", "-")
        shutil.copytree(stopped, folder)
        raise_it(folder)
        before = _bytes_of(folder)
        errors: list[HeadraceError] = []
        try:
            async with opened(folder, "newer") as broker:
                for topic in broker.node.topics.by_name.values():
                    for _, partition in topic.logs:
                        try:
                            await partition.wait_loaded()
                        except HeadraceError as error:
                            errors.append(error)
        except HeadraceError as error:
            errors.append(error)
            after = _bytes_of(folder)
            if raise_it not in UNTOUCHED:
                before, after = _lasting(before), _lasting(after)
            found.same(f"{name}, the folder after the rejection", before, after)
        else:
            if raise_it not in PARTITIONS_ALONE:
                found.wrong.append(f"a newer version of {name} is opened as if it were known")
        _check_rejections(found, name, errors)
    for name, read in _newer_parts():
        try:
            read()
        except HeadraceError as error:
            _check_rejections(found, name, [error])
        else:
            _check_rejections(found, name, [])
    return found


def _check_rejections(found: Findings, name: str, errors: list[HeadraceError]) -> None:
    found.checked += 1
    if not errors:
        found.wrong.append(f"a newer version of {name} is read as if it were known")
    for error in errors[:1]:
        if not isinstance(error, FormatUnsupported):
            found.wrong.append(f"{name}: {type(error).__name__} instead of a rejection: {error}")
        elif not NEXT_STEP.search(str(error)):
            found.wrong.append(f"{name}: the rejection names no next step: {error}")


_RECIPE = recipe_format.Recipe(
    object_format.Layout(1, 2, 3, has_footer=True), array("I", [0, 0]), b"end", (), ()
)


def _newer_parts() -> list[tuple[str, Callable[[], Any]]]:
    header = bytearray(object_format.encode_header(object_format.Layout(1, 2, 3, has_footer=True)))
    header[8] += 1
    header[4:8] = crc32c(bytes(header[8:])).to_bytes(4, "little")
    recipe = bytearray(recipe_format.encode_recipe(_RECIPE)[-recipe_format.END_SIZE :])
    recipe[8] += 1
    head = bytearray(entries.pack_head(entries.DATA, 0, 0))
    head[2] += 1
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("an object", lambda: object_format.decode_header(bytes(header), 1)),
        ("a recipe", lambda: recipe_format.rest_size(bytes(recipe), 1_000, LedgerId(1))),
        ("an entry", lambda: entries.read_head(memoryview(head))),
    ]
    if has_module("google.protobuf"):
        from headrace.storage.bookkeeper.ledger_metadata import decode_metadata

        newer = b"BookieMetadataFormatVersion\t4\n"
        parts.append(("a ledger's metadata", lambda: decode_metadata(newer)))
    return parts


# --- unknown fields and keys -----------------------------------------------------------------


def _with_unknown(fact: dict[str, Any]) -> dict[str, Any]:
    changed = {**fact, **NEWER}
    if "ledgers" in fact:
        changed["ledgers"] = [{**link, **NEWER} for link in fact["ledgers"]]
    if "partition_count" in fact:
        changed["configs"] = {**fact["configs"], SETTING: "1"}
    return changed


async def check_unknown(stopped: Path, work: Path) -> Findings:
    """Fields, keys and records of a newer version, through a life of this one."""
    found = Findings("unknown fields")
    shutil.copytree(stopped, work)
    _rewrite_facts(work, "/", _with_unknown)
    metadata = await SqliteMetadataStore.open(work / METADATA, SlowClock())
    await metadata.put("/newer/key", b"of a newer version", ANY)
    await metadata.close()
    before = await facts_in(work)
    async with opened(work, "unknown") as broker:
        groups = (await everything(broker.node))[0]["groups"]
        await _live(broker.node)
    after = await facts_in(work)
    async with opened(work, "unknown again") as broker:
        gives, _ = await everything(broker.node)
    found.same("groups after unknown records", groups, gives["groups"])
    found.same("/newer/key", "of a newer version", after.get("/newer/key"))
    rewritten = 0
    for key, text in before.items():
        if key not in after or not text.startswith("{"):
            continue
        rewritten += text != after[key]
        now = json.loads(after[key])
        found.same(key, NEWER["newer"], now.get("newer"))
        if key.startswith(TOPICS):
            found.same(f"{key}, configuration", "1", now["configs"].get(SETTING))
        links = {link["ledger"]: link for link in now.get("ledgers", ())}
        for link in json.loads(text).get("ledgers", ()):
            if link["ledger"] in links:
                found.same(
                    f"{key}, its ledgers", NEWER["newer"], links[link["ledger"]].get("newer")
                )
    if rewritten < 4:
        found.wrong.append(f"only {rewritten} facts were rewritten: nothing is verified")
    return found


async def _live(node: Node) -> None:
    """Rewrite every kind of fact."""
    topics = node.topics
    for _, partition in topics.get("orders").logs:
        await partition.wait_loaded()
    await topics.change_configs(
        topics.get("orders"), lambda before: {**before, "retention.bytes": "7777777"}
    )
    await topics.add_partitions(topics.get("empty"), 6)
    for number in range(3):
        await append(node, "orders", 0, batch_of("unknown", number))
    await topics.get("orders").require_log(0).roll_now()
    await topics.get("orders").require_log(1).trim(2)
    await node.producer_ids.take()
    # A coordinator record with an unknown version.
    newer = encode_batch([Record(0, 1_000, b"\x00\x63of a newer version", b"\x00\x63anything")])
    for number in range(CONFIG.offsets_partition_count):
        await append(node, OFFSETS_TOPIC, number, newer)


async def check_neighbour() -> Findings:
    """A broker next to a newer one, which serves, owns and pins with additional fields."""
    found = Findings("beside a newer broker")
    metadata = MemoryMetadataStore()
    clock = SlowClock()
    alone = Node(CONFIG, MemoryLedgerStore(), metadata, clock, SeededRandomness("alone"))
    await alone.open()
    fact = await alone.topics.create("shared", 3, 1, {})
    await alone.close()
    newer = BrokerFact(1, "host", 1, "host", 2, 3, None, "life", unknown=dict(NEWER))
    await metadata.put(f"{BROKERS}1", newer.encode(), ANY)
    for number in range(2):
        key = partition_key(fact.id, number).removeprefix(PARTITIONS)
        await metadata.put(
            f"{OWNERS}{key}", OwnerFact(1, "life", 1, unknown=dict(NEWER)).encode(), ANY
        )
        await metadata.put(f"{PINS}{key}", PinFact(1, unknown=dict(NEWER)).encode(), ANY)
    await metadata.put(f"{DRAINING}9", json.dumps(NEWER).encode(), ANY)
    await metadata.put("/newer/key", b"of a newer version", ANY)
    owners = {entry.key: entry.value for entry in await metadata.list(OWNERS)}
    node = Node(
        CONFIG, MemoryLedgerStore(), metadata, clock, SeededRandomness("beside"), slots=(0, 1)
    )
    await node.open()
    try:
        found.same("topics", ["shared"], node.topics.names())
        await node.register(("127.0.0.1", 1), ("127.0.0.1", 2))
        topic = await node.topics.create("own", 1, 1, {})
        found.same("a topic that it makes", topic.id.hex, node.topics.get("own").id.hex)
        now = {entry.key: entry.value for entry in await metadata.list(OWNERS)}
        for key, value in owners.items():
            found.same(f"{key} of the newer broker", value, now.get(key))
    finally:
        await node.close()
    return found
