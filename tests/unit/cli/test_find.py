"""`headrace find` and `trace` over HTTP alone: where a broker cannot ask the owners of some
partitions, and what an archive is compared with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from click.testing import CliRunner
from tests.kit.json_server import answering

from headrace.cli import find as find_module
from headrace.cli.failures import CommandFailed
from headrace.cli.find import find
from headrace.cli.session import CliSession
from headrace.cli.trace import trace
from headrace.records.identifiers import kafka_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC_ID, FORMER_ID = UUID(int=7), UUID(int=6)
PAGES: list[dict[str, Any]] = [
    {"places": [("orders", 0)], "failed": [("orders", 1)], "next_page_token": "more"},
    {"places": [("orders", 2)], "failed": [("orders.dead", 0)]},
]


def _answer(path: str, query: dict[str, list[str]]) -> dict[str, Any]:
    page = PAGES["page_token" in query or path.endswith("/trace")]
    failed = [{"topic": topic, "partition": number} for topic, number in page["failed"]]
    return {
        "id": str(TOPIC_ID),
        "messages": [_message(*place) for place in page["places"]],
        "is_complete": False,
        "searched": {"records": 1, "bytes": 0},
        "failed": failed,
        **{name: [] for name in ("events", "traceparents", "unknown")},
        "tables": [{"table": "headrace.shop.orders"}],
        **{name: value for name, value in page.items() if name == "next_page_token"},
    }


def _message(topic: str, partition: int) -> dict[str, Any]:
    where = {"state": "log", "topic": topic, "partition": partition, "offset": 0}
    return {**where, "timestamp_ms": 1, "headers": [], "key": None, "value": "v"}


@pytest.fixture
def address() -> Iterator[str]:
    def answer(_address: str, path: str) -> dict[str, Any]:
        asked = urlsplit(path)
        if asked.path == "/v1/cluster":
            return {"cluster_id": "here"}
        return _answer(asked.path, parse_qs(asked.query))

    with answering(answer) as found:
        yield found


def test_partitions_whose_owner_could_not_be_asked_are_named(address: str) -> None:
    arguments = ["orders", "--json", "--http", address]
    result = CliRunner().invoke(find, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    places = [(one["topic"], one["partition"]) for one in answer["messages"]]
    assert (places, answer["is_complete"]) == ([("orders", 0), ("orders", 2)], False)
    assert "orders-1, orders.dead-0" in answer["reason"]
    arguments = ["orders", "id", "--json", "--http", address]
    result = CliRunner().invoke(trace, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert not json.loads(result.stdout)["is_complete"]


def test_an_expression_is_not_for_an_archive() -> None:
    arguments = ["orders", "--filter", "value > 1", "--table", "a.b", "--warehouse", "w"]
    result = CliRunner().invoke(find, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert result.exit_code != 0
    assert "nothing was searched" in result.output


def test_a_record_that_the_log_does_not_have_is_not_found_at_its_offset(address: str) -> None:
    """The search begins there, and finds a later one."""
    session = CliSession("nowhere:1", cluster_id="here")
    place = ["orders", "-p", "0", "--json", "--http", address]
    found = CliRunner().invoke(find, [*place, "--offset", "0"], obj=session)
    assert [one["offset"] for one in json.loads(found.stdout)["messages"]] == [0]
    missing = CliRunner().invoke(find, [*place, "--offset", "7"], obj=session)
    assert json.loads(missing.stdout)["messages"] == []
    assert missing.exit_code != 0
    asked = ["orders", "--offset", "7"]
    alone = CliRunner().invoke(find, asked, obj=session, standalone_mode=False)
    assert isinstance(alone.exception, CommandFailed)
    assert "Give --partition" in alone.exception.next_step


def test_a_trace_without_events_says_how_to_look_into_the_table(address: str) -> None:
    session = CliSession("nowhere:1", cluster_id="here")
    for message, named in (("id 1", "'--id=id 1'"), ("2:17", "--partition=2 --offset=17")):
        asked = ["orders", message, "--http", address]
        result = CliRunner().invoke(trace, asked, obj=session, standalone_mode=False)
        wanted = f"headrace find orders {named} --table=headrace.shop.orders --warehouse WAREHOUSE"
        assert isinstance(result.exception, CommandFailed), result.output
        assert wanted in result.exception.next_step


@pytest.mark.parametrize(("archived_id", "count"), [(TOPIC_ID, 2), (FORMER_ID, 3)])
def test_an_archive_is_told_apart_from_the_topic_of_today_without_kafka(
    address: str, monkeypatch: pytest.MonkeyPatch, archived_id: UUID, count: int
) -> None:
    archived = [_message("orders", 0) | {"state": "archived"}]
    found = (archived, kafka_uuid(archived_id))
    monkeypatch.setattr(find_module, "restarted", lambda _job, _what: found)
    arguments = ["orders", "--json", "--http", address, "--warehouse", "w", "--table", "a.orders"]
    result = CliRunner().invoke(find, arguments, obj=CliSession("nowhere:1", cluster_id="here"))
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["messages"]) == count
    assert ("holds the records of an earlier orders" in result.stderr) == (count == 3)
