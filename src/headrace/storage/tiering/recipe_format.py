"""The format of a recipe: a ledger whose records are rebuilt from the data files of a table.

Invariants: bytes in, bytes out. The layout is in `docs/FORMAT.md`. Do not change: stored.
A recipe describes the ledger's bytes as *runs* of whole batches. A kept run has its bytes in the
recipe. A borrowed run has the headers of its batches there, and its records are consecutive rows of
one data file. The checksums of the blocks are those of the ledger's object, so what is rebuilt is
verified like what is read.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.storage.tiering.object_format import (
    HEADER_SIZE,
    Layout,
    decode_header,
    decode_tail,
    encode_header,
    encode_tail,
    ledger_of_name,
    object_name,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from headrace.storage.ledger import Buffer, LedgerId

VERSION: Final = 1
END_SIZE: Final = 40
KEPT: Final = -1
"""The file of a kept run."""
RUN_BYTES: Final = 256 * 1024
"""A run ends with the batch that reaches this, so that little is rebuilt for a random read."""

_MAGIC: Final = b"HRRE"
_END: Final = Struct("<4sIIIQQII")
_RUN: Final = Struct("<IIiq")
_SUFFIX: Final = ".recipe"

assert _END.size == END_SIZE


class TableFile(NamedTuple):
    """A data file of the table, as it was when the recipe was written."""

    path: str
    size_bytes: int
    sha256: str


class Run(NamedTuple):
    """Consecutive whole batches: `size` bytes at `position` of the ledger.

    The recipe has `stored_size` bytes at `stored_at`: the batches (`file` KEPT), or their headers.
    """

    position: int
    size: int
    stored_at: int
    stored_size: int
    file: int
    first_row: int


class Recipe(NamedTuple):
    """Everything but the stored bytes of the runs. `crcs` has one per block, then the footer's."""

    layout: Layout
    crcs: array[int]
    footer: bytes
    files: tuple[TableFile, ...]
    runs: tuple[Run, ...]

    def runs_of(self, start: int, end: int) -> Sequence[Run]:
        """The runs with bytes of the ledger from `start` to before `end`."""
        first = bisect_right(self.runs, start, key=_position) - 1
        return self.runs[first : bisect_right(self.runs, end - 1, key=_position)]


def _position(run: Run) -> int:
    return run.position


def recipe_name(ledger: int) -> str:
    """The recipe's name, beside the object's."""
    return object_name(ledger).rpartition(".")[0] + _SUFFIX


def ledger_of_recipe(name: str) -> LedgerId | None:
    """The ledger of a recipe's name; None for other names."""
    stem, dot, suffix = name.rpartition(".")
    return ledger_of_name(f"{stem}.ledger") if dot + suffix == _SUFFIX else None


def encode_recipe(recipe: Recipe) -> bytes:
    """What follows the stored bytes of the runs."""
    layout = recipe.layout
    files = json.dumps([one._asdict() for one in recipe.files], sort_keys=True).encode()
    runs = b"".join(
        _RUN.pack(run.size, run.stored_size, run.file, run.first_row) for run in recipe.runs
    )
    tail = encode_tail(layout, recipe.crcs[:-1], recipe.footer)
    body = b"".join((encode_header(layout), recipe.footer, tail, files, runs))
    stored = sum(run.stored_size for run in recipe.runs)
    fields = (VERSION, len(files), stored, layout.ledger, len(recipe.runs))
    crc = crc32c(body)
    end = _END.pack(_MAGIC, 0, *fields, 0)
    return body + _END.pack(_MAGIC, crc32c(end[8:], crc), *fields, 0)


def rest_size(end: Buffer, size: int, ledger: LedgerId) -> int:
    """Bytes before the last END_SIZE of a recipe of `size` bytes that `decode_recipe` needs.

    Raises DataCorrupt, FormatUnsupported.
    """
    magic, _, version, _, stored, found, _, _ = _END.unpack(end)
    if magic != _MAGIC or found != ledger:
        raise corrupt(ledger, "its end is not one, or another ledger's")
    if version != VERSION:
        raise FormatUnsupported(
            f"the recipe of ledger {ledger} has version {version}, this version of Headrace"
            f" supports {VERSION}: start a newer one",
            ledger=ledger,
            version=version,
        )
    left: int = size - END_SIZE - stored
    if left < HEADER_SIZE:
        raise corrupt(ledger, "it is truncated")
    return left


def decode_recipe(rest: Buffer, end: Buffer, ledger: LedgerId) -> Recipe:
    """Decode a recipe. Raises DataCorrupt, FormatUnsupported."""
    view = memoryview(rest)
    _, crc, _, files_size, _, _, run_count, _ = _END.unpack(end)
    if crc != crc32c(memoryview(end)[8:], crc32c(view)):
        raise corrupt(ledger, "checksum mismatch")
    layout = decode_header(view[:HEADER_SIZE], ledger)
    tail_at = HEADER_SIZE + layout.footer_size
    files_at = tail_at + layout.tail_size
    runs_at = files_at + files_size
    if runs_at + run_count * _RUN.size != len(view):
        raise corrupt(ledger, "its parts do not add up to its size")
    packed = list(_RUN.iter_unpack(view[runs_at:]))
    positions = list(accumulate((one[0] for one in packed), initial=0))
    stored = list(accumulate((one[1] for one in packed), initial=0))
    if positions[-1] != layout.size:
        raise corrupt(ledger, f"it describes {positions[-1]} of {layout.size} bytes")
    runs = tuple(
        Run(position, size, at, stored_size, file, row)
        for position, at, (size, stored_size, file, row) in zip(
            positions, stored, packed, strict=False
        )
    )
    files = tuple(TableFile(**one) for one in json.loads(bytes(view[files_at:runs_at])))
    crcs = decode_tail(view[tail_at:files_at], layout)
    return Recipe(layout, crcs, bytes(view[HEADER_SIZE:tail_at]), files, runs)


def corrupt(ledger: int, problem: str) -> DataCorrupt:
    """The error for a recipe that cannot be used."""
    return DataCorrupt(
        f"the recipe of ledger {ledger} is corrupt ({problem}): its records are not served;"
        " restore the recipe from a backup or an older version",
        ledger=ledger,
    )
