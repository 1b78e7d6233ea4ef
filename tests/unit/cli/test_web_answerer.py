"""A broker that is registered under an address where another one answers."""

from __future__ import annotations

import pytest

from headrace.cli.failures import CommandFailed
from headrace.cli.web import check_answerer


def test_a_command_that_meets_another_broker_stops_and_says_why() -> None:
    check_answerer(-1, 1, "127.0.0.1:9180")
    check_answerer(2, 2, "127.0.0.1:9180")
    with pytest.raises(CommandFailed, match=r"broker 2 .* 127.0.0.1:9180, where broker 1 answers"):
        check_answerer(2, 1, "127.0.0.1:9180")
