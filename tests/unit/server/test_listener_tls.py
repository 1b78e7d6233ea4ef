"""What is set for server names."""

from __future__ import annotations

import pytest

from headrace.errors import RequestInvalid
from headrace.server.listener_tls import by_server_name


def test_names_are_read_whatever_spaces_are_around_them() -> None:
    found = by_server_name(" A.example.com = acme;b.example.com=/x/y.pem ; ")
    assert found == {"a.example.com": "acme", "b.example.com": "/x/y.pem"}


@pytest.mark.parametrize("text", ["a", "=x", "a=", "A=1;a =2", " = "])
def test_names_without_a_value_or_given_twice_are_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="nothing was started"):
        by_server_name(text)
