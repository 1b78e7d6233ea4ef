"""Checks a folder of a golden set: open, read, append, kill, reopen, stop, reopen.

Invariants: works on a copy. Everything in the set's manifest must be there, byte for byte, and
nothing else; then this version continues where the other one ended.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import CommitCommand, OffsetToCommit
from headrace.errors import HeadraceError
from headrace.records.batch import read_header
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace_verify.crash.broker_scenario import as_stored
from headrace_verify.upgrade.findings import Findings
from headrace_verify.upgrade.make import append, batch_of
from headrace_verify.upgrade.opened import OBJECTS, everything, facts_in, opened

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.node import Node

REWRITTEN = ("kept_in-zstd", "stamped")
"""Topics whose batches the broker rewrites: they are not stored as sent."""
LATER_RECORDS = 3
"""Of the two batches that are appended to each partition."""
LATER_GROUP, LATER_TOPIC, DELETED_TOPIC = "later", "made-later", "codec.gzip"


async def check_folder(root: Path, work: Path, name: str, manifest: dict[str, Any]) -> Findings:
    """Check the folder `name` of an unpacked set. `work` does not exist yet."""
    found = Findings(name)
    shutil.copytree(root / name, work)
    objects = None
    if manifest["has_objects"]:
        objects = work.with_name(f"{work.name}.{OBJECTS}")
        shutil.copytree(root / f"{name}.{OBJECTS}", objects)
    written = {path.name: path.read_bytes() for path in (root / "bytes" / name).iterdir()}
    later = _Later(found, manifest, written)
    try:
        found.same("facts", manifest["facts"], await facts_in(work))
        async with opened(work, "first", objects, is_killed=True) as broker:
            gives, data = await everything(broker.node)
            found.same("what it gives", manifest["gives"], gives)
            for where, expected in written.items():
                found.same(f"{where}", expected, data.get(where, b""))
            await later.go_on(broker.node)
        async with opened(work, "second", objects) as broker:
            await later.check(broker.node, "after a kill")
        async with opened(work, "third", objects) as broker:
            await later.check(broker.node, "after a stop")
    except (HeadraceError, AssertionError, LookupError, ValueError) as error:
        found.wrong.append(f"{name}: not usable: {type(error).__name__}: {error}"[:600])
    return found


class _Later:
    """What this version does to the folder, and the expected result."""

    def __init__(
        self, found: Findings, manifest: dict[str, Any], written: dict[str, bytes]
    ) -> None:
        self._found = found
        self._manifest = manifest
        self._data = {where: data for where, data in written.items() if OFFSETS_TOPIC not in where}
        self._committed: dict[str, list[Any]] = {}

    async def go_on(self, node: Node) -> None:
        """Retries, next batches, new batches, committed offsets, ids, topics."""
        await self._producers_go_on(node)
        for name in sorted(node.topics.by_name):
            topic = node.topics.by_name[name]
            if topic.is_internal:
                continue
            for number in range(len(topic.partitions)):
                where = f"{name}-{number}"
                offset = -1
                for at in range(2):
                    batch = batch_of(f"later {where}", at)
                    offset = await append(node, name, number, batch)
                    self._data[where] = self._data.get(where, b"") + as_stored(batch, offset)
                await self._commit(node, name, number, offset)
        taken = await node.producer_ids.take()
        if taken <= self._manifest["producer_id_taken"]:
            self._found.wrong.append(
                f"{self._found.where}: producer id {taken} was allocated twice"
            )
        await node.topics.create(LATER_TOPIC, 1, 1, {})
        if DELETED_TOPIC in node.topics.by_name:
            await node.services.topics.delete(DELETED_TOPIC)
            self._data.pop(f"{DELETED_TOPIC}-0")
            self._committed.pop(f"{DELETED_TOPIC}-0")
        self._data[f"{LATER_TOPIC}-0"] = b""

    async def _producers_go_on(self, node: Node) -> None:
        """A retried batch is recognised, and the next one in sequence accepted."""
        for where, (text, offset) in self._manifest["last_batches"].items():
            topic, _, number = where.rpartition("-")
            batch = bytes.fromhex(text)
            again = await append(node, topic, int(number), batch)
            self._found.same(f"{where}, a retried batch", offset, again)
            header = read_header(batch)
            sequence = header.base_sequence + header.record_count
            producer = (header.producer_id, header.producer_epoch, sequence)
            behind = batch_of(topic, 99, producer=producer)
            stored = await append(node, topic, int(number), behind)
            self._data[where] += as_stored(behind, stored)

    async def _commit(self, node: Node, topic: str, number: int, offset: int) -> None:
        commit = OffsetToCommit(topic, number, offset, 0, "later")
        reply = await node.groups.submit(CommitCommand(LATER_GROUP, -1, "", None, [commit]))
        if reply.results[0].error is not None:
            raise reply.results[0].error
        self._committed[f"{topic}-{number}"] = [offset, 0, "later"]

    async def check(self, node: Node, when: str) -> None:
        """Check that old and new data is there."""
        gives, data = await everything(node)
        data = {where: held for where, held in data.items() if OFFSETS_TOPIC not in where}
        for where, held in self._data.items():
            if where.rpartition("-")[0] in REWRITTEN:
                end = self._manifest["gives"]["partitions"][where]["end"] + LATER_RECORDS
                self._found.same(f"{where} {when}, end", end, gives["partitions"][where]["end"])
            else:
                self._found.same(f"{where} {when}", held, data.get(where, b""))
        stray = data.keys() - self._data.keys()
        self._found.same(f"unexpected partitions {when}", [], sorted(stray))
        groups = dict(self._manifest["gives"]["groups"])
        for group in groups.values():
            group["offsets"].pop(f"{DELETED_TOPIC}-0", None)
        groups[LATER_GROUP] = {"offsets": self._committed}
        found = gives["groups"]
        self._found.same(f"{when}, groups", groups, found)
