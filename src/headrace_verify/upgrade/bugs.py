"""Self-test: undeclared format changes, each of which the golden sets must reveal.

Invariants: writer and reader change together, so that this version is consistent with itself: only
bytes written by another version reveal the change. Changes are reverted.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from headrace.coordination.groups import state_records
from headrace.log import footer
from headrace.log.producer_state import ProducerState
from headrace.metadata import fact_json, facts, sqlite_file
from headrace.storage.bookkeeper import entries, entry_builder
from headrace.storage.files import format as layouts
from headrace.storage.tiering import object_format
from headrace_verify.self_proof import Bug
from headrace_verify.task import patched
from headrace_verify.upgrade.make import KILLED
from headrace_verify.upgrade.run import NEWER, PARTS, SETS, Plan, run_upgrade

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.self_proof import Patch


@dataclass(frozen=True)
class FormatBug(Bug):
    """Found by a part of a run."""

    folder: str = KILLED
    """Of a set: one is enough."""


class _Swapped:
    """A layout with two of its fields exchanged."""

    def __init__(self, layout: Struct, one: int, other: int) -> None:
        self._layout = layout
        self._places = (one, other)
        self.size = layout.size

    def _swap(self, values: Sequence[Any]) -> list[Any]:
        one, other = self._places
        swapped = list(values)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        return swapped

    def pack(self, *values: Any) -> bytes:
        return self._layout.pack(*self._swap(values))

    def pack_into(self, buffer: Any, at: int, *values: Any) -> None:
        self._layout.pack_into(buffer, at, *self._swap(values))

    def unpack_from(self, data: Any, at: int = 0) -> list[Any]:
        return self._swap(self._layout.unpack_from(data, at))


def swap_two_fields_of_a_footer(patch: Patch) -> None:
    patch(footer, "_HEAD", _Swapped(footer._HEAD, 1, 2))


def forget_producers_of_a_footer(patch: Patch) -> None:
    patch(ProducerState, "decode", staticmethod(lambda _data: ProducerState()))


def swap_two_fields_of_a_frame(patch: Patch) -> None:
    patch(layouts, "FRAME_CHECKED", _Swapped(layouts.FRAME_CHECKED, 3, 4))
    patch(layouts, "FRAME_HEAD", _Swapped(layouts.FRAME_HEAD, 5, 6))


def sum_files_up_otherwise(patch: Patch) -> None:
    patch(layouts, "crc32c", lambda data, start=0: crc32c(data, start) ^ 1)


def sum_facts_up_otherwise(patch: Patch) -> None:
    patch(
        sqlite_file,
        "row_crc",
        lambda key, value, _version: int(crc32c(value, crc32c(key.encode()))),
    )


def rename_a_field_of_a_fact(patch: Patch) -> None:
    read, shown = fact_json.FactReader.integer_or_none, fact_json.shown_fields

    def renamed(fact: Any) -> Any:
        fields = shown(fact)
        for link in fields.get("ledgers", ()):
            if "end_offset" in link:
                link["end"] = link.pop("end_offset")
        return fields

    patch(
        fact_json.FactReader,
        "integer_or_none",
        lambda self, name, least: read(self, "end" if name == "end_offset" else name, least),
    )
    patch(facts, "shown_fields", renamed)


def drop_fields_that_nobody_knows(patch: Patch) -> None:
    patch(fact_json.FactReader, "rest", lambda _self: {})


def take_newer_facts_for_known(patch: Patch) -> None:
    patch(fact_json, "FACT_VERSION", 9)


def take_newer_footers_for_known(patch: Patch) -> None:
    patch(footer, "VERSION", 3)


def swap_two_fields_of_an_entry(patch: Patch) -> None:
    swapped = _Swapped(entries.HEAD, 3, 4)
    patch(entries, "HEAD", swapped)
    patch(entry_builder, "HEAD", swapped)


def sum_objects_up_otherwise(patch: Patch) -> None:
    patch(object_format, "_SEED", Struct(">QI"))


def keep_progress_under_other_keys(patch: Patch) -> None:
    patch(state_records, "OFFSET_KEY_VERSION", 7)
    patch(state_records, "_decode_plain_offset", lambda *_: None)  # the fast path around it


BUGS = (
    FormatBug(swap_two_fields_of_a_footer, (SETS,)),
    FormatBug(forget_producers_of_a_footer, (SETS,)),
    FormatBug(swap_two_fields_of_a_frame, (SETS,)),
    FormatBug(sum_files_up_otherwise, (SETS,)),
    FormatBug(sum_facts_up_otherwise, (SETS,)),
    FormatBug(rename_a_field_of_a_fact, (PARTS,)),
    FormatBug(drop_fields_that_nobody_knows, (NEWER,)),
    FormatBug(take_newer_facts_for_known, (NEWER,)),
    FormatBug(take_newer_footers_for_known, (NEWER,)),
    FormatBug(swap_two_fields_of_an_entry, (PARTS,)),
    FormatBug(sum_objects_up_otherwise, (PARTS,)),
    FormatBug(keep_progress_under_other_keys, (SETS,)),
)


def find(bug: FormatBug) -> list[str]:
    """The findings of the part of a run that must find it."""
    with ExitStack() as stack:
        bug.plant(lambda owner, name, value: stack.enter_context(patched(owner, name, value)))
        plan = Plan(what=bug.found_by, folders=(bug.folder,))
        return run_upgrade(plan, lambda _fraction, _name: None).violations
