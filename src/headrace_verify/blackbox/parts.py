"""What a run consists of beside the clients of plain records: parts with clients of their own.

Invariants: a part owns its topics, its roles and how they end; the run and the crew know parts
by this seam alone. `PARTS` in `all_parts` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace_verify.blackbox.context import Context
    from headrace_verify.blackbox.crew import Crew

RECORDS = "records"
"""The clients of plain records, which are no `Part`."""


class Role(NamedTuple):
    """A kind of client in a run."""

    name: str
    kind: str
    rate_per_s: int = 0
    group: str | None = None
    library: str | None = None
    """A package that must be installed."""
    is_quick: bool = True
    """Whether the quick profile has it, too."""
    language: str | None = None
    """What it is written in, if that is not Python."""
    part: str = RECORDS
    topics: Mapping[str, int] | None = None
    """Name -> partitions; None: those of plain records."""
    options: Mapping[str, Any] | None = None
    """For the client's `Spec`, beside those that all get."""


class Part(NamedTuple):
    """One part of a run; its functions get the run's own context."""

    name: str
    roles: tuple[Role, ...]
    topics: Mapping[str, int]
    """Name -> partitions: created before the clients start."""
    critical_kinds: tuple[str, ...]
    """A run in which one of these events never happened has checked nothing of the part."""
    prepare: Callable[[Context], None]
    """When the topics are there, before the clients start. Raises OSError."""
    settle: Callable[[Crew, Context, float], Iterator[str]]
    """After the last fault: let its clients finish within so many seconds; complaints in words."""
    read_back: Callable[[Context], Iterator[str]]
    """Read everything once more, twice at the end of a run; what could not be read, in words."""
