"""Parked keys on the command line: one broker answers for the whole topic."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.kit.json_server import answering

from headrace.cli.backlog_park import park, parked, unpark
from headrace.cli.queue import watch
from headrace.cli.session import CliSession

FAILED = [
    {"partition": 2, "error": {"detail": "no broker serves it", "next_step": "try again"}},
    {"partition": 5, "error": {"detail": "no broker serves it", "next_step": "try again"}},
]


@pytest.fixture
def broker():
    """The address of a server, and what it answers."""
    answer: dict = {}

    def told(_address: str, path: str) -> dict:
        return {"cluster_id": "here"} if path == "/v1/cluster" else answer

    with answering(told) as address:
        yield address, answer


def session() -> CliSession:
    return CliSession("nowhere:1", cluster_id="here")


def typed(command, address: str, *arguments: str):
    return CliRunner().invoke(command, [*arguments, "--http", address], obj=session())


def test_the_keys_that_were_released_are_counted(broker):
    address, answer = broker
    answer.update({"released": 2, "keys": ["a", "b"]})
    done = typed(unpark, address, "workers", "orders", "a", "b", "c")
    assert (done.exit_code, "2 of 3 keys were released" in done.output) == (0, True), done.output
    answer.update({"released": 0, "keys": []})
    done = typed(unpark, address, "workers", "orders", "a")
    assert done.exit_code != 0
    assert "none of these keys is parked" in done.output


def test_no_command_on_parked_keys_succeeds_where_a_partition_could_not_be_asked(broker):
    address, answer = broker
    answer.update({"released": 1, "keys": ["a"], "parked": []})
    for command, keys in ((park, ["a"]), (parked, []), (unpark, ["a"])):
        assert typed(command, address, "workers", "orders", *keys).exit_code == 0
    answer["failed"] = FAILED
    for command, keys in ((park, ["a"]), (parked, []), (unpark, ["a"])):
        done = typed(command, address, "workers", "orders", *keys)
        assert done.exit_code == 1
        assert "partitions 2, 5 failed" in done.output
        assert "no broker serves it" in done.output


def test_a_watch_names_the_partitions_that_are_missing(broker):
    address, answer = broker
    shown = {"partition": 0, "start_offset": 3, "end_offset": 5, "in_flight": 2, "lag": 4}
    answer.update({"partitions": [shown], "failed": FAILED})
    done = typed(watch, address, "orders", "workers", "-n", "1")
    assert done.exit_code == 0, done.output
    assert "4 messages behind" in done.output
    assert "Partitions 2, 5 are missing: no broker serves it" in done.output
