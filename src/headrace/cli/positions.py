"""Positions in a log, as users write them: `earliest`, `latest`, `42`, `-10`, a time, a duration.

Invariants: parsing is pure; only `resolve` queries the broker, once per kind.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from headrace.cli.client import kafka, kafka_admin
from headrace.cli.pairs import DURATION, parse_duration_ms
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.session import CliSession

Kind = Literal["earliest", "latest", "offset", "last", "time"]
POSITION_WORDS = (
    "earliest, latest, OFFSET, -N (the last N), a time (2026-01-31T10:00, or with Z: UTC), or an"
    " age (15m)"
)

_WORDS: dict[str, Kind] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "start": "earliest",
    "latest": "latest",
    "end": "latest",
}


class PositionSpec(NamedTuple):
    """A position: `number` is an offset, a count, or milliseconds since the epoch, by `kind`."""

    kind: Kind
    number: int = 0


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


def parse_time_ms(text: str) -> int:
    """Parse ISO 8601 (without a zone: local time) or `@` and milliseconds. Raises ValueError."""
    if text.startswith("@"):
        return int(text[1:])
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def parse_position(text: str, now_ms: int) -> PositionSpec:
    """Parse a position. Raises ValueError."""
    if text in _WORDS:
        return PositionSpec(_WORDS[text])
    if text.isascii() and text.isdigit():
        return PositionSpec("offset", int(text))
    if re.fullmatch(r"-\d+", text, re.ASCII):
        return PositionSpec("last", int(text[1:]))
    if DURATION.match(text.removeprefix("-")):  # -15m: as journalctl has it
        return PositionSpec("time", now_ms - parse_duration_ms(text.removeprefix("-")))
    try:
        return PositionSpec("time", parse_time_ms(text))
    except ValueError:
        raise ValueError(f"{text!r} is none of: {POSITION_WORDS}") from None


class PositionType(click.ParamType[Any]):
    """A click type for positions."""

    name = "position"

    def convert(self, value: Any, param: Any, ctx: Any) -> PositionSpec:
        """See click.ParamType."""
        if isinstance(value, PositionSpec):
            return value
        try:
            return parse_position(str(value), time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeType(click.ParamType[Any]):
    """A click type for times: ISO 8601, `@` and milliseconds, or a duration ago."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """See click.ParamType."""
        if isinstance(value, int):
            return value
        with suppress(ValueError):  # which names positions that are no times, too
            position = parse_position(str(value), time.time_ns() // 1_000_000)
            if position.kind == "time":
                return position.number
        return self.fail(
            f"{value!r} is not a time such as 2013-01-31T12:00, @MILLISECONDS or 15m", param, ctx
        )


class Bounds(NamedTuple):
    """A partition's log start offset, and the offset of its next record."""

    earliest: int
    latest: int


def log_bounds(session: CliSession, partitions: Sequence[Partition]) -> dict[Partition, Bounds]:
    """Return both for each partition."""
    earliest = _ask(session, partitions, "earliest", 0)
    latest = _ask(session, partitions, "latest", 0)
    return {p: Bounds(earliest[p], latest[p]) for p in partitions}


def resolve(
    session: CliSession, position: PositionSpec, bounds: dict[Partition, Bounds]
) -> dict[Partition, int]:
    """Return the offset of `position` in each partition, limited to its bounds."""
    match position.kind:
        case "earliest":
            return {p: b.earliest for p, b in bounds.items()}
        case "latest":
            return {p: b.latest for p, b in bounds.items()}
        case "offset":
            return {p: min(max(position.number, b.earliest), b.latest) for p, b in bounds.items()}
        case "last":
            return {p: max(b.latest - position.number, b.earliest) for p, b in bounds.items()}
        case "time":
            found = _ask(session, list(bounds), "time", position.number)
            # -1: every record is older, so the position is the end.
            return {p: found[p] if found[p] >= 0 else b.latest for p, b in bounds.items()}


def _ask(
    session: CliSession, partitions: Sequence[Partition], kind: Kind, timestamp_ms: int
) -> dict[Partition, int]:
    if not partitions:
        return {}
    offset_spec = kafka_admin().OffsetSpec

    if kind == "time":
        spec = offset_spec.for_timestamp(timestamp_ms)
    else:
        spec = offset_spec.earliest() if kind == "earliest" else offset_spec.latest()
    asked = {kafka().TopicPartition(p.topic, p.number): spec for p in partitions}
    futures = session.admin().list_offsets(asked, request_timeout=session.timeout_s)
    return {
        Partition(where.topic, where.partition): session.answer(
            future,
            f"offsets of {where.topic}-{where.partition}",
            Right("describe", "topic", where.topic),
        ).offset
        for where, future in futures.items()
    }
