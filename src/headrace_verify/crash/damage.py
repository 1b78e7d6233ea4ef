"""Attacks on data at rest: files truncated or garbled at every byte of their tails, and bit flips.

The oracle: what is served is what was acknowledged, byte for byte, or the damage is reported. One
exception, which docs/FORMAT.md names: damage to the last durable WAL frame cannot be distinguished
from a torn write, because nothing was written after it; then whole batches of that frame may be
missing, never anything else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.storage.files.format import SECTOR_BYTES, decode_folder, decode_frame
from headrace_verify.crash.data_folder import METADATA_FILES, DataFolder, build, read_folder
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.task import Task

TAIL_BYTES = 64 << 10
TURNS = 8
WAL_BYTES = 12 << 10
ALL_WAL_BYTES = 4 << 10
"""The range in which every bit is flipped: the rest of a WAL file is zeros, at the same cost per
bit."""
TAIL_TURNS, TAIL_SCALE = 24, 5
"""Few but large batches: opening costs per batch, and the WAL's tail must be full."""
_NOTHING_SHOWN = 1 << 60


class Frames:
    """The frames of the folder's last WAL file."""

    def __init__(self, folder: DataFolder) -> None:
        files = folder.files()
        salt = decode_folder(files["format"], "format")
        self.path = ""
        self.ranges: list[tuple[int, int, int]] = []
        """(start, end, sequence), ascending."""
        for path in sorted(path for path in files if path.endswith(".wal")):
            found = _ranges(files[path], salt, int(path[-20:-4], 16))
            if found and (not self.ranges or found[-1][2] > self.ranges[-1][2]):
                self.path, self.ranges = path, found

    @property
    def end(self) -> int:
        """The end of the last frame."""
        return self.ranges[-1][1] if self.ranges else 0

    def is_last(self, path: str, at: int) -> bool:
        """Whether the byte belongs to the last frame."""
        return path == self.path and bool(self.ranges) and self.ranges[-1][0] <= at < self.end

    def sequence_before(self, at: int) -> int:
        """The last frame that lies completely before the byte."""
        before = [sequence for _, end, sequence in self.ranges if end <= at]
        return before[-1] if before else self.ranges[0][2] - 1


def _ranges(data: bytes, salt: int, number: int) -> list[tuple[int, int, int]]:
    view = memoryview(data)
    found: list[tuple[int, int, int]] = []
    at = 0
    while True:
        aligned = -(-at // SECTOR_BYTES) * SECTOR_BYTES
        frame = decode_frame(view, at, salt, number) or decode_frame(view, aligned, salt, number)
        if frame is None:
            return found
        found.append((frame.start, frame.end, frame.sequence))
        at = frame.end


def verdict(
    folder: DataFolder, damaged: DataFolder, scratch: Path | None, sequence: int = _NOTHING_SHOWN
) -> tuple[str, str]:
    """Classify as ("exact" or "reported" or "torn" or "wrong", the problem).

    Batches after WAL frame `sequence` may be missing: then the result is "torn".
    """
    try:
        found = asyncio.run(read_folder(damaged, scratch))
    except HeadraceError:
        return "reported", ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no report of damage
        return "wrong", f"not a report but an internal error, {type(error).__name__}: {error}"
    if found.error is not None:
        return "reported", ""
    kind = "exact"
    for name, batches in folder.batches.items():
        given = found.data.get(name)
        if given is None:
            return "wrong", f"{name} is missing, and nothing is reported"
        if isinstance(given, HeadraceError):
            kind = "reported"
            continue
        whole = b"".join(batch.data for batch in batches)
        if given == whole:
            continue
        if not whole.startswith(given):
            return "wrong", f"{name} serves bytes that were not acknowledged"
        needed = sum(len(batch.data) for batch in batches if batch.sequence <= sequence)
        if len(batches) > 1 and len(given) not in _boundaries([b.data for b in batches]):
            return "wrong", f"{name} ends within a batch"
        if sequence == _NOTHING_SHOWN or (len(given) < needed and len(batches) > 1):
            return "wrong", f"{name} silently lost {len(whole) - len(given)} acknowledged bytes"
        kind = "torn" if kind == "exact" else kind
    if found.notes and kind == "exact":
        return "wrong", found.notes[0]
    return kind, ""


def _boundaries(parts: list[bytes]) -> set[int]:
    found, at = {0}, 0
    for part in parts:
        at += len(part)
        found.add(at)
    return found


def run_flips(task: Task) -> None:
    """Flip single bits: samples over all files, or with `is_exhaustive` every bit once."""
    folders = _folders(task, TURNS, ALL_WAL_BYTES if task.is_exhaustive else WAL_BYTES)
    rng = seeded(task.seed)
    scratch = task.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    places = [
        (is_closed, path, size)
        for is_closed, folder in folders.items()
        for path, content in sorted(folder.files().items())
        if (size := len(content))  # metadata.sqlite-wal is empty without writers
    ]
    total = sum(8 * size for _closed, _path, size in places)
    task.figures["bits in the folders"] = total
    frames = {is_closed: Frames(folder) for is_closed, folder in folders.items()}
    limit = task.flips_max
    if task.is_exhaustive:
        # A byte that is never read changes nothing: a run depends only on what it reads.
        places = _read_places(folders, places)
        limit = sum(8 * size for _closed, _path, size in places)
        task.figures["bits left out"] = total - limit
        task.skip("files that are never read, and metadata.sqlite a second time (closed cleanly)")
    every = ((c, p, bit) for c, p, size in places for bit in range(8 * size))
    while task.checked < limit if limit is not None else task.has_time():
        if task.checked % 64 == 0 and not task.has_time() and limit is None:
            break
        if task.is_exhaustive:
            is_closed, path, bit = next(every)
        else:
            is_closed, path, size = rng.choice(places)
            bit = rng.randrange(8 * size)
        folder = folders[is_closed]
        content = bytearray(folder.files()[path])
        content[bit // 8] ^= 1 << bit % 8
        damaged = folder.with_file(path, bytes(content))
        is_metadata = path in METADATA_FILES
        sequence = _NOTHING_SHOWN
        if frames[is_closed].is_last(path, bit // 8):
            sequence = frames[is_closed].sequence_before(frames[is_closed].ranges[-1][0])
        kind, what = verdict(folder, damaged, scratch if is_metadata else None, sequence)
        task.checked += 1
        task.runs += 1
        task.add(f"flips {kind}")
        task.add(f"flips in {_kind_of(path)}")
        if kind == "wrong":
            task.wrong(
                f"{path}: bit {bit % 8} of byte {bit // 8}: {what}",
                seed=task.seed,
                file=path,
                byte=bit // 8,
                bit=bit % 8,
                is_closed=is_closed,
            )
            if task.stop_at_first:
                return


def _read_places(
    folders: dict[bool, DataFolder], places: list[tuple[bool, str, int]]
) -> list[tuple[bool, str, int]]:
    read = {is_closed: asyncio.run(folder.files_read()) for is_closed, folder in folders.items()}
    return [
        (is_closed, path, size)
        for is_closed, path, size in places
        if path in read[is_closed] or (path in METADATA_FILES and not is_closed)
    ]


def run_tails(task: Task) -> None:
    """Truncate, zero and garble the tails of files, at every byte if there is time."""
    folder = _folders(task, TAIL_TURNS, wal_bytes=256 << 10, scale=TAIL_SCALE)[False]
    frames = Frames(folder)
    rng = seeded(task.seed)
    files = folder.files()
    places = []
    for path, content in sorted(files.items()):
        end = frames.end if path == frames.path else len(content)
        if path in METADATA_FILES or not end or path == "lock":
            continue
        if path.endswith(".wal") and path != frames.path:
            continue
        places += [(path, at) for at in range(max(0, end - TAIL_BYTES), end)]
    task.figures["bytes in the tails"] = len(places)
    task.skip("metadata.sqlite is not truncated: its tail is covered by SQLite's own recovery")
    rng.shuffle(places)
    if task.is_exhaustive:  # every byte; the WAL first, because a limit may end the run
        places.sort(key=lambda place: (place[0] != frames.path, place))
    limit = task.flips_max
    for path, at in places:
        if task.runs % 16 == 0 and not task.has_time() and not task.is_exhaustive:
            break
        if limit is not None and task.runs >= limit:
            break
        task.runs += 1
        for how in ("cut", "zeros", "noise"):
            content = _torn(files[path], at, how, task.seed)
            sequence = frames.sequence_before(at) if path == frames.path else _NOTHING_SHOWN
            kind, what = verdict(folder, folder.with_file(path, content), None, sequence)
            task.checked += 1
            task.add(f"tails {kind}")
            if kind == "wrong":
                task.wrong(
                    f"{path} {how} from byte {at}: {what}",
                    seed=task.seed,
                    file=path,
                    byte=at,
                    how=how,
                )
    task.figures["tail bytes visited"] = task.runs
    if task.runs < len(places):
        why = "out of time" if limit is None else "a limit was set"
        task.skip(f"{len(places) - task.runs} of {len(places)} tail bytes: {why}")


def _torn(content: bytes, at: int, how: str, seed: int) -> bytes:
    if how == "cut":
        return content[:at]
    if how == "zeros":
        return content[:at] + bytes(len(content) - at)
    return content[:at] + seeded(f"{seed} {at}").randbytes(len(content) - at)


def _folders(
    task: Task, turns: int, wal_bytes: int = WAL_BYTES, scale: int = 1
) -> dict[bool, DataFolder]:
    logging.getLogger("headrace").setLevel(logging.CRITICAL)  # thousands of reports follow
    folders = {}
    for is_closed in (False, True):
        place = task.folder / f"folder-{is_closed}"
        place.mkdir(exist_ok=True)
        folders[is_closed] = asyncio.run(
            build(
                task.seed,
                place,
                turns=turns,
                is_closed=is_closed,
                wal_bytes=wal_bytes,
                scale=scale,
            )
        )
        kind, what = verdict(folders[is_closed], folders[is_closed], place)
        assert kind == "exact", f"the folder is invalid before it is damaged: {what}"
    return folders


def _kind_of(path: str) -> str:
    if path in METADATA_FILES:
        return path
    return path.rpartition(".")[2] if "." in path else path
