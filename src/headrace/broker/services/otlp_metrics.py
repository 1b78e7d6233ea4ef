"""Reads the numbers in OpenTelemetry's MetricsData (opentelemetry-proto 1.x, metrics.proto).

Invariants: pure, and bounded for any bytes: at most FIELDS_MAX fields are read, and POINTS_MAX
numbers returned. Gauges, sums, and the count and sum of histograms are numbers; anything else is
skipped. Clients push this encoding (KIP-714).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import RecordInvalid
from headrace.runtime.protobuf_wire import FIXED64, ProtobufInvalid, fields

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS_MAX: Final = 20_000
"""About 30 ms; POINTS_MAX numbers with their attributes have 15,000."""
POINTS_MAX: Final = 1_000
TEXT_LENGTH_MAX: Final = 200
"""Characters of a name or of the value of an attribute; longer ones are cut."""
ATTRIBUTES_MAX: Final = 16
"""Of one number."""
_DOUBLE, _LONG = Struct("<d"), Struct("<q")
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9
"""Fields of Metric."""

Field = tuple[int, int, "int | memoryview"]
"""(number, wire type, value)"""


class Point(NamedTuple):
    """One number."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    """Those of the resource and of the number, sorted."""
    value: float


class _Reader:
    """Counts the fields that are read."""

    def __init__(self) -> None:
        self.left = FIELDS_MAX

    def fields(self, data: memoryview) -> Iterator[Field]:
        """The fields of one message. Raises RecordInvalid."""
        try:
            for field in fields(data):
                self.left -= 1
                if self.left < 0:
                    raise RecordInvalid(
                        f"the metrics have over {FIELDS_MAX} fields: subscribe to fewer"
                    )
                yield field
        except ProtobufInvalid as error:
            raise RecordInvalid(f"the metrics are malformed: {error}") from error


def _text(value: int | memoryview) -> str:
    if isinstance(value, int):
        return str(value)
    return bytes(value[: 4 * TEXT_LENGTH_MAX]).decode(errors="replace")[:TEXT_LENGTH_MAX]


def _number(kind: int, value: int | memoryview, layout: Struct) -> float:
    if isinstance(value, int) or kind != FIXED64:
        raise RecordInvalid("the metrics are malformed: a value is not of 64 bits")
    return float(layout.unpack(value)[0])


def read_points(data: bytes) -> list[Point]:
    """The first POINTS_MAX numbers. Raises RecordInvalid on anything but MetricsData."""
    reader = _Reader()
    points: list[Point] = []
    for number, _kind, value in reader.fields(memoryview(data)):
        if number == 1 and not isinstance(value, int):
            _resource_metrics(reader, value, points)
    return points[:POINTS_MAX]


def _resource_metrics(reader: _Reader, data: memoryview, points: list[Point]) -> None:
    attributes: list[tuple[str, str]] = []
    scopes: list[memoryview] = []
    for number, _kind, value in reader.fields(data):
        if isinstance(value, int):
            continue
        if number == 1:
            for one, _, attribute in reader.fields(value):
                if one == 1 and not isinstance(attribute, int):
                    attributes.append(_attribute(reader, attribute))
        elif number == 2:
            scopes.append(value)
    for scope in scopes:
        for number, _kind, value in reader.fields(scope):
            if number == 2 and not isinstance(value, int) and len(points) < POINTS_MAX:
                _metric(reader, value, attributes, points)


def _metric(
    reader: _Reader, data: memoryview, shared: list[tuple[str, str]], points: list[Point]
) -> None:
    name = ""
    series: list[tuple[int, memoryview]] = []
    for number, _kind, value in reader.fields(data):
        if number == 1:
            name = _text(value)
        elif number in {_GAUGE, _SUM, _HISTOGRAM} and not isinstance(value, int):
            series.append((number, value))
    for what, body in series:
        for number, _kind, value in reader.fields(body):
            if number != 1 or isinstance(value, int) or len(points) >= POINTS_MAX:
                continue
            if what == _HISTOGRAM:
                points += _histogram_point(reader, name, value, shared)
            else:
                points += _number_point(reader, name, value, shared)


def _number_point(
    reader: _Reader, name: str, data: memoryview, shared: list[tuple[str, str]]
) -> list[Point]:
    """NumberDataPoint: as_double 4, as_int 6, attributes 7."""
    attributes, found = list(shared), None
    for number, kind, value in reader.fields(data):
        if number == 4:
            found = _number(kind, value, _DOUBLE)
        elif number == 6:
            found = _number(kind, value, _LONG)
        elif number == 7 and not isinstance(value, int):
            attributes.append(_attribute(reader, value))
    return [] if found is None else [Point(name, _sorted(attributes), found)]


def _histogram_point(
    reader: _Reader, name: str, data: memoryview, shared: list[tuple[str, str]]
) -> list[Point]:
    """HistogramDataPoint: count 4, sum 5, attributes 9."""
    attributes, found = list(shared), []
    for number, kind, value in reader.fields(data):
        if number == 4:
            found.append((".count", _number(kind, value, _LONG)))
        elif number == 5:
            found.append((".sum", _number(kind, value, _DOUBLE)))
        elif number == 9 and not isinstance(value, int):
            attributes.append(_attribute(reader, value))
    return [Point(name + suffix, _sorted(attributes), number) for suffix, number in found]


def _attribute(reader: _Reader, data: memoryview) -> tuple[str, str]:
    """KeyValue; a value that is an array, a map or bytes is left out."""
    key = text = ""
    for number, _kind, value in reader.fields(data):
        if number == 1:
            key = _text(value)
        elif number == 2 and not isinstance(value, int):
            for one, kind, inner in reader.fields(value):
                if one == 4:
                    text = f"{_number(kind, inner, _DOUBLE):g}"
                elif one in {1, 2, 3}:
                    text = _text(inner)
    return key, text


def _sorted(attributes: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(dict(attributes).items())[:ATTRIBUTES_MAX])
