"""Folders written by older commits, opened with this tree: for versions that were never released.

Invariants: needs git and the project's history; without them, it says so. The older tree runs as a
separate process, from its own files; clients know only its port.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Fatal
from headrace.records.batch import read_header
from headrace_verify.kafka_wire import KafkaWire, Refused
from headrace_verify.real_broker import RealBroker
from headrace_verify.upgrade import archive
from headrace_verify.upgrade.findings import Findings
from headrace_verify.upgrade.make import IDEMPOTENT_BATCHES, batch_of
from headrace_verify.wire.abuse import pause

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
_SERVE = "src/headrace/cli/serve.py"
TOPICS = {"older-plain": 2, "older-codecs": 1, "older-small": 1, "older-again": 1}
GROUP = "older-group"
_COORDINATOR_S = 20
LAUNCH = (sys.executable, "-m", "headrace.cli.main")


class Written(NamedTuple):
    """What an older broker has acknowledged and returned."""

    data: dict[tuple[str, int], bytes]
    committed: dict[tuple[str, int], int]
    last: bytes
    """An idempotent producer's last batch, in older-plain-1."""
    last_offset: int


def commits(count: int) -> list[str]:
    """Some commits, oldest first, from the first that serves; none without git or history."""
    begun = _git("log", "--diff-filter=A", "--reverse", "--format=%h", "HEAD", "--", _SERVE)[:1]
    if not begun or count < 1:
        return []
    later = _git("log", "--first-parent", "--reverse", "--format=%h", f"{begun[0]}..", "--", "src")
    found = [*begun, *later]
    last = len(found) - 1
    return sorted({found[last * at // count] for at in range(count)}, key=found.index)


def _git(*arguments: str) -> list[str]:
    """The words of git's output; none if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            ["git", "-C", str(ROOT), *arguments],  # noqa: S607 - whichever git there is
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.split()


def check_commit(commit: str, work: Path) -> Findings:
    """Let the tree of a commit write a folder, and continue it with this one. Raises Fatal."""
    found = Findings(f"commit {commit}")
    tree = unpack(commit, work / "tree")
    older = RealBroker(work / "broker", launch=LAUNCH)
    older.environment = environment(tree)
    older.start()
    try:
        written = _write(older)
    except OSError as error:
        found.skipped.append(f"that tree does not accept the load: {error!r}")
        return found
    finally:
        older.kill()
    for when in ("after a kill", "after a stop"):
        broker = RealBroker(work / "broker")
        broker.start()
        try:
            _compare(broker, written, found, when)
        finally:
            broker.terminate()
    return found


def before(text: str, path: str) -> str | None:
    """The newest commit in whose history no file at `path` has the text; None without git or
    history."""
    added = _git("log", "--reverse", "--format=%h", f"-S{text}", "HEAD", "--", path)
    return f"{added[0]}~" if added else None


def environment(tree: Path) -> dict[str, str]:
    """In which LAUNCH starts the broker of an unpacked tree."""
    return {"PYTHONPATH": str(tree / "src")}


def unpack(commit: str, tree: Path) -> Path:
    """The sources of a commit; returns `tree`. Raises Fatal."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise Fatal(
            f"git does not know {commit}: {done.stderr.decode().strip()}; choose another commit"
        )
    archive.extract(done.stdout, tree)
    return tree


def _write(broker: RealBroker) -> Written:
    wire = KafkaWire(broker.address, 30)
    try:
        for topic, count in TOPICS.items():
            configs = {"segment.bytes": "2000"} if topic == "older-small" else {}
            wire.create_topic(topic, count, configs)
        wire.produce("older-again", 0, batch_of("gone", 1))
        wire.delete_topic("older-again")
        _until(lambda: wire.create_topic("older-again", 1, {}))
        for number in range(10):
            wire.produce("older-plain", 0, batch_of("plain", number))
            wire.produce("older-small", 0, batch_of("small", number, padding=400))
            wire.produce("older-codecs", 0, batch_of("codecs", number, codec=number % 5))
        wire.produce("older-again", 0, batch_of("again", 1))
        producer, epoch = wire.new_producer()
        sequence, last, last_offset = 0, b"", 0
        for number in range(IDEMPOTENT_BATCHES):
            last = batch_of("idempotent", number, producer=(producer, epoch, sequence))
            last_offset = wire.produce("older-plain", 1, last)
            sequence += read_header(last).record_count
        committed = {("older-plain", 0): 7, ("older-small", 0): 3}
        for (topic, part), offset in committed.items():
            _until(
                lambda topic=topic, part=part, offset=offset: wire.commit(  # type: ignore[misc]
                    GROUP, topic, part, offset
                )
            )
        return Written(_all(wire), committed, last, last_offset)
    finally:
        wire.close()


def _until(ask: Callable[[], None]) -> None:
    """Query a broker that may still be loading, or deleting. Raises Refused in the end."""
    for _ in range(_COORDINATOR_S * 10):
        try:
            ask()
        except Refused:
            pause(0.1)
        else:
            return
    ask()


def _all(wire: KafkaWire) -> dict[tuple[str, int], bytes]:
    found = {}
    for topic, count in TOPICS.items():
        for part in range(count):
            data, offset, end = b"", 0, 1
            while offset < end:
                more, end = wire.fetch(topic, part, offset)
                at = 0
                while at < len(more):
                    header = read_header(more, at)
                    offset = header.last_offset + 1
                    at += header.size
                if not more:
                    break
                data += more
            found[topic, part] = data
    return found


def _compare(broker: RealBroker, written: Written, found: Findings, when: str) -> None:
    wire = KafkaWire(broker.address, 30)
    try:
        held = _all(wire)
        for place, data in written.data.items():
            found.same(f"{place[0]}-{place[1]} {when}", data, held[place])
        again = wire.produce("older-plain", 1, written.last)
        found.same(f"a retried batch {when}", written.last_offset, again)
        committed: dict[tuple[str, int], int] = {}

        def look() -> None:
            committed.update(wire.all_committed(GROUP, TOPICS))

        _until(look)
        for place, offset in written.committed.items():
            found.same(f"progress in {place} {when}", offset, committed.get(place))
        offset = wire.produce("older-again", 0, batch_of("later", 1))
        _, end = wire.fetch("older-again", 0, offset)
        found.same(f"the end of what is appended {when}", offset + 2, end)
        written.data["older-again", 0] = _all(wire)["older-again", 0]
    finally:
        wire.close()
