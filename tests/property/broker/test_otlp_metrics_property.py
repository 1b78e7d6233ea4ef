"""Whatever a client pushes as metrics is read within bounds, or refused."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.services.otlp_metrics import POINTS_MAX, TEXT_LENGTH_MAX, read_points
from headrace.errors import RecordInvalid


@st.composite
def messages(draw: st.DrawFn, depth: int = 5) -> bytes:
    """Protobuf messages of few fields, of which some hold messages."""
    out = b""
    for _ in range(draw(st.integers(0, 4))):
        number, kind = draw(st.integers(1, 11)), draw(st.sampled_from([0, 1, 2, 5]))
        out += bytes([number << 3 | kind])
        if kind == 0:
            out += bytes([draw(st.integers(0, 127))])
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
            out += draw(st.binary(min_size=size, max_size=size))
        else:
            body = draw(messages(depth - 1) if depth else st.binary(max_size=20))
            out += bytes([len(body)]) + body if len(body) < 128 else b"\x00"
    return out


@given(st.one_of(st.binary(max_size=200), messages()))
def test_any_bytes_are_metrics_or_refused(data: bytes) -> None:
    try:
        points = read_points(data)
    except RecordInvalid:
        return
    assert len(points) <= POINTS_MAX
    for point in points:
        assert len(point.name) <= TEXT_LENGTH_MAX + len(".count")
        assert math.isnan(point.value) or isinstance(point.value, float)
        assert all(len(value) <= TEXT_LENGTH_MAX for _name, value in point.attributes)
