"""The parts of a run, in the order in which they are finished."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace_verify.blackbox import compacted, lite_part, queue_part
from headrace_verify.blackbox.parts import RECORDS
from headrace_verify.blackbox.transactions import TRANSACTIONS
from headrace_verify.real_broker import HAS_ROCKETMQ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.blackbox.parts import Part

PARTS: tuple[Part, ...] = (TRANSACTIONS, queue_part.PART, compacted.PART)
if HAS_ROCKETMQ and find_spec("grpc") is not None:  # or it has no clients
    PARTS = (*PARTS, lite_part.PART)
NAMES = (RECORDS, *(part.name for part in PARTS))


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts with these names; empty: all."""
    return [part for part in PARTS if not names or part.name in names]


def has_records(names: Sequence[str]) -> bool:
    """Whether the clients of plain records are among them."""
    return not names or RECORDS in names
