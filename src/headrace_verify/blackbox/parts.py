"""The parts of a run beyond the clients of plain records; each has its own clients.

Invariants: a part owns its topics, its roles and how they finish; the run and the crew know parts
only by this interface. `PARTS` in `all_parts` lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from headrace_verify.blackbox.context import Context

RECORDS = "records"
"""The clients of plain records, which are not a `Part`."""


class Clients(Protocol):
    """The running clients, as far as a part needs them to finish."""

    @property
    def folder(self) -> Path:
        """Where their histories are."""
        ...

    def of_part(self, part: str) -> list[Any]:
        """Those of one part."""
        ...

    def end(self, chosen: Iterable[Any], timeout_s: float) -> list[str]:
        """Ask them to end; returns the names of those that did not in time."""
        ...


class Role(NamedTuple):
    """A kind of client in a run."""

    name: str
    kind: str
    rate_per_s: int = 0
    group: str | None = None
    library: str | None = None
    """A package that must be installed."""
    is_quick: bool = True
    """Whether the quick profile includes it."""
    language: str | None = None
    """Its language, if not Python."""
    part: str = RECORDS
    topics: Mapping[str, int] | None = None
    """Name -> partitions; None: those of plain records."""
    options: Mapping[str, Any] | None = None
    """For the client's `Spec`, in addition to the common ones."""


class Part(NamedTuple):
    """One part of a run; its functions get the run's own context."""

    name: str
    roles: tuple[Role, ...]
    topics: Mapping[str, int]
    """Name -> partitions: created before the clients start."""
    critical_kinds: tuple[str, ...]
    """If one of these events never happened, the run has not tested the part."""
    prepare: Callable[[Context], None]
    """Called when the topics exist, before the clients start. Raises OSError."""
    settle: Callable[[Clients, Context, float], Iterator[str]]
    """Called after the last fault: let its clients finish within this many seconds; returns
    complaints."""
    read_back: Callable[[Context], Iterator[str]]
    """Read everything, twice at the end of a run; returns what could not be read, as text."""
