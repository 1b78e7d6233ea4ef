"""Copies a cluster's metadata out of ZooKeeper, and into an empty one.

Invariants: two trees are copied, Headrace's facts and BookKeeper's (ledgers, cookies of bookies);
records stay in the bookies. Both are those of one moment: BookKeeper's are read between two
readings of the facts, until these agree. A ledger exists before a fact names it, and until no fact
does, so every ledger that a fact names is among them. Ephemeral nodes are not copied: they belong
to sessions. Counters of ids, which ZooKeeper keeps itself, are advanced to where they were, so that
no ledger id is assigned again.

A restore writes BookKeeper's tree first, then the facts, and compares what ZooKeeper then has. If
it was interrupted, only the same backup continues it, which a node beside the facts names: no
broker starts while that exists. A value that was changed since is not overwritten.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from base64 import b64decode, b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.administration.backup_place import (
    CLUSTER,
    FolderPlace,
    ObjectPlace,
    copy_verified,
    digest_of,
    fresh,
    publish,
    read_manifest,
    write_file,
    write_manifest,
)
from headrace.errors import DataCorrupt, RequestInvalid, Retriable
from headrace.metadata.facts import CLUSTER_ID, ClusterFact
from headrace.metadata.zookeeper_keys import key_of_path, path_of_key
from headrace.zookeeper.link import NodeConflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.administration.backup_place import Place
    from headrace.zookeeper.client import ZooKeeper

NODES: Final = "nodes.ndjson"
ATTEMPTS_MAX: Final = 20
_FACTS, _LEDGERS = "facts", "ledgers"
_AT_ONCE: Final = 200


class Node(NamedTuple):
    """A persistent node, by its path below the tree's root."""

    tree: str
    path: str
    value: bytes
    sequence: int = 0
    """The next number of a sequential node below it, of BookKeeper's id counters."""


class Roots(NamedTuple):
    """Where the trees are."""

    facts: str
    ledgers: str

    def full(self, node: Node) -> str:
        """The node's path in ZooKeeper."""
        return (self.facts if node.tree == _FACTS else self.ledgers) + node.path

    @property
    def restoring(self) -> str:
        """Names the backup while it is being restored."""
        return f"{self.facts}-restoring"


class Done(NamedTuple):
    """A copy that was made and compared."""

    place: str
    cluster_id: str
    facts: int
    ledger_nodes: int
    size_bytes: int


# --- backup --------------------------------------------------------------------------------------


async def read_nodes(zookeeper: ZooKeeper, roots: Roots) -> list[Node]:
    """All persistent nodes, parents before children. Raises Retriable, MetadataUnavailable,
    RequestInvalid if there is no cluster."""
    facts = await _tree(zookeeper, roots.facts)
    for _attempt in range(ATTEMPTS_MAX):
        if path_of_key(CLUSTER_ID) not in facts:
            raise RequestInvalid(
                f"ZooKeeper has no cluster at {roots.facts}; no backup was made: check --zookeeper"
                " and --zookeeper-root"
            )
        ledgers = await _ledger_nodes(zookeeper, roots.ledgers)
        before, facts = facts, await _tree(zookeeper, roots.facts)
        if facts == before:
            return [Node(_FACTS, path, value) for path, (value, _zxid) in facts.items()] + ledgers
    raise Retriable(
        f"{roots.facts} in ZooKeeper was changed during each of {ATTEMPTS_MAX} readings; no"
        " backup was made: try again while fewer topics are created or deleted"
    )


async def _ledger_nodes(zookeeper: ZooKeeper, root: str) -> list[Node]:
    nodes = []
    for path, (value, _zxid) in (await _tree(zookeeper, root)).items():
        sequence = 0
        if path == "/idgen" or path.startswith("/idgen-long/HOB-"):
            sequence = await zookeeper.next_sequence(root + path)
        nodes.append(Node(_LEDGERS, path, value, sequence))
    return nodes


async def _tree(zookeeper: ZooKeeper, root: str) -> dict[str, tuple[bytes, int]]:
    """(value, transaction) of each persistent node below `root`, "" for itself, sorted by level."""
    found: dict[str, tuple[bytes, int]] = {}
    level = [""]
    while level:
        states = await zookeeper.get_many([root + path for path in level])
        level = [
            path
            for path, state in zip(level, states, strict=True)
            if state is not None and not state.owner
        ]
        found |= {
            path: (state.value, state.changed_zxid)
            for path, state in zip(level, (s for s in states if s and not s.owner), strict=True)
        }
        names = await zookeeper.children_of_many([root + path for path in level])
        level = sorted(
            f"{path}/{name}"
            for path, below in zip(level, names, strict=True)
            for name in below or ()
        )
    return found


def back_up(nodes: Sequence[Node], target: Path, version: str, now_ms: int) -> Done:
    """Write the nodes to a folder, which must not exist or be empty.

    Raises RequestInvalid, OSError.
    """
    partial = fresh(target)
    data = b"".join(_line(node) for node in nodes)
    write_file(partial / NODES, data)
    write_manifest(partial, CLUSTER, version, now_ms, {NODES: digest_of(data)})
    publish(partial, target)
    return _done(str(target), nodes, len(data))


def back_up_to_url(nodes: Sequence[Node], url: str, version: str, now_ms: int) -> Done:
    """Write the nodes to object storage, where nothing may be yet.

    Raises RequestInvalid, StorageUnavailable, DataCorrupt, OSError.
    """
    place = ObjectPlace(url)
    place.check_empty()
    with TemporaryDirectory(prefix="headrace-backup-") as name:
        folder = Path(name) / "backup"
        done = back_up(nodes, folder, version, now_ms)
        place.upload(folder, read_manifest(FolderPlace(folder), CLUSTER))
    return done._replace(place=place.shown)


# --- restore -------------------------------------------------------------------------------------


def load(place: Place) -> tuple[list[Node], str]:
    """The nodes of a backup and its digest. Raises RequestInvalid, DataCorrupt,
    StorageUnavailable, OSError."""
    files = read_manifest(place, CLUSTER)
    with TemporaryDirectory(prefix="headrace-restore-") as name:
        copy_verified(place, files, Path(name) / "copy")
        data = (Path(name) / "copy" / NODES).read_bytes()
        shutil.rmtree(Path(name) / "copy")
    try:
        nodes = list(map(_node, data.splitlines()))
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"{place.shown}/{NODES} cannot be decoded: use another backup") from error
    return nodes, hashlib.sha256(data).hexdigest()


async def restore(
    zookeeper: ZooKeeper, roots: Roots, nodes: Sequence[Node], digest: str, shown: str
) -> Done:
    """Write the nodes into a ZooKeeper that has neither tree, and compare.

    Raises RequestInvalid if a tree exists or something else writes there, DataCorrupt if ZooKeeper
    returns other values than were written, MetadataUnavailable.
    """
    done = _done(shown, nodes, sum(len(node.value) for node in nodes))
    await _begin(zookeeper, roots, digest)
    for tree in (_LEDGERS, _FACTS):
        for level in _levels(node for node in nodes if node.tree == tree):
            for at in range(0, len(level), _AT_ONCE):
                some = level[at : at + _AT_ONCE]
                await asyncio.gather(*(_write(zookeeper, roots, node) for node in some))
    for node in nodes:
        if node.sequence:
            await _advance(zookeeper, roots.full(node), node.sequence)
    await _compare(zookeeper, roots, nodes)
    await zookeeper.delete(roots.restoring)
    return done


async def refuse_while_restoring(zookeeper: ZooKeeper, roots: Roots) -> None:
    """For a broker that starts, and others that change the facts. Raises RequestInvalid while a
    restore is not complete."""
    if await zookeeper.exists(roots.restoring):
        raise RequestInvalid(
            f"a restore to {roots.facts} in ZooKeeper is not complete; no broker starts and nothing"
            " was changed, because facts are missing: restore the same backup again (`headrace"
            " cluster restore`), which continues, or empty ZooKeeper"
        )


async def _begin(zookeeper: ZooKeeper, roots: Roots, digest: str) -> None:
    """Check that nothing is overwritten. Raises RequestInvalid."""
    begun = await zookeeper.get(roots.restoring)
    if begun is not None:
        if begun.value != digest.encode():
            raise RequestInvalid(
                f"another backup was not restored completely to {roots.facts}; nothing was changed:"
                " restore that one, or use an empty ZooKeeper"
            )
        return
    for root in (roots.facts, roots.ledgers):
        if await zookeeper.children(root):
            raise RequestInvalid(
                f"{root} in ZooKeeper is not empty; nothing was changed: restore into an empty"
                " ZooKeeper, before brokers and bookies are started on it"
            )
    await zookeeper.create(roots.restoring, digest.encode())


def _levels(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Nodes whose parents are in earlier lists."""
    by_depth: dict[int, list[Node]] = {}
    for node in nodes:
        by_depth.setdefault(node.path.count("/"), []).append(node)
    for depth in sorted(by_depth):
        yield by_depth[depth]


async def _write(zookeeper: ZooKeeper, roots: Roots, node: Node) -> None:
    full = roots.full(node)
    if node.tree == _FACTS and node.path and key_of_path(node.path) is None:
        return  # a folder: made with the first key in it, if one is left
    try:
        await zookeeper.create(full, node.value)
    except NodeConflict:  # the root itself, or an attempt before
        found = await zookeeper.get(full)
        if found is not None and found.value == node.value:
            return
        if node.path:
            raise RequestInvalid(
                f"{full} in ZooKeeper is not what the backup has, and was not changed: something"
                " was written there since the restore began; stop it, empty ZooKeeper, and restore"
                " again"
            ) from None
        await zookeeper.put(full, node.value)


async def _advance(zookeeper: ZooKeeper, folder: str, sequence: int) -> None:
    """Use up the numbers of sequential nodes below `folder` before `sequence`."""

    async def use_one() -> None:
        made = await zookeeper.create(f"{folder}/ID-", b"", ephemeral=True, sequence=True)
        await zookeeper.delete(made)

    while (left := sequence - await zookeeper.next_sequence(folder)) > 0:
        await asyncio.gather(*(use_one() for _ in range(min(left, _AT_ONCE))))


async def _compare(zookeeper: ZooKeeper, roots: Roots, nodes: Sequence[Node]) -> None:
    kept = [node for node in nodes if node.tree == _LEDGERS or key_of_path(node.path) is not None]
    for at in range(0, len(kept), _AT_ONCE):
        some = kept[at : at + _AT_ONCE]
        states = await zookeeper.get_many([roots.full(node) for node in some])
        for node, state in zip(some, states, strict=True):
            if state is None or state.value != node.value:
                raise DataCorrupt(
                    f"{roots.full(node)} in ZooKeeper is not what was restored: something else"
                    " writes there; stop it, empty ZooKeeper, and restore again"
                )


def _done(place: str, nodes: Sequence[Node], size_bytes: int) -> Done:
    facts = [node for node in nodes if node.tree == _FACTS and key_of_path(node.path) is not None]
    stored = next((node.value for node in facts if node.path == path_of_key(CLUSTER_ID)), b"")
    return Done(
        place, ClusterFact.decode(stored).id, len(facts), len(nodes) - len(facts), size_bytes
    )


def _line(node: Node) -> bytes:
    """Do not change: stored."""
    fields = {"tree": node.tree, "path": node.path, "value": b64encode(node.value).decode()}
    return json.dumps(fields | ({"sequence": node.sequence} if node.sequence else {})).encode() + (
        b"\n"
    )


def _node(line: bytes) -> Node:
    """Raises ValueError, KeyError, TypeError."""
    found = json.loads(line)
    tree, path = found["tree"], found["path"]
    if tree not in {_FACTS, _LEDGERS} or not isinstance(path, str):
        raise ValueError(tree, path)
    if path and (not path.startswith("/") or {"", ".", ".."} & set(path[1:].split("/"))):
        raise ValueError(path)
    value = b64decode(found["value"], validate=True)
    return Node(tree, path, value, int(found.get("sequence", 0)))
