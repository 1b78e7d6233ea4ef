"""gRPC's own texts: time-outs, messages of errors, content types."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.grpc import messages


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"250m", 0.25), (b"5u", 5e-6), (b"99999999n", 0.1)],
)
def test_time_outs(text, seconds):
    assert messages.timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"1s", b"-1S", b"1.5S", b"123456789S", b"1S\n"])
def test_malformed_time_outs(text):
    assert messages.timeout_s(text) is None


@given(st.text(max_size=300))
def test_messages_of_errors_are_printable_and_come_back(text):
    encoded = messages.percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode()) == text.encode("utf-8", "replace").decode()
    assert encoded == encoded.strip()


def test_long_messages_are_cut_between_characters():
    decoded = unquote(messages.percent_encoded("ä" * 1000).decode())
    assert decoded == "ä" * 510 + "..."


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/json", False),
        (None, False),
    ],
)
def test_content_types(text, is_one):
    assert messages.is_grpc(text) is is_one
