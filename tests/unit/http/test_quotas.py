"""Quotas over HTTP: listed, changed and deleted; calls over the rate get 429."""

from __future__ import annotations

from typing import Any

from tests.unit.http.http_rig import Web, followed, on_the_web

QUOTAS, RECORDS = "/v1/quotas", "/v1/topics/t/records"


@on_the_web
async def test_quotas_are_changed_listed_and_deleted(http: Web) -> None:
    both: dict[str, Any] = {"user": "a", "default_client_id": True}
    change = {**both, "set": {"producer_byte_rate": 10, "consumer_byte_rate": 20}}
    status, answer = await http.ask("PATCH", f"{QUOTAS}?dry_run=true", change)
    assert (status, answer["dry_run"]) == (200, True)
    assert await http.ask("GET", QUOTAS) == (200, {"quotas": []})
    status, answer = await http.ask("PATCH", QUOTAS, change)
    assert (status, answer["entity"]) == (200, both)
    status, answer = await http.ask("PATCH", QUOTAS, {**both, "reset": ["consumer_byte_rate"]})
    assert answer["quotas"] == {"producer_byte_rate": 10}
    _, listed = await http.ask("GET", QUOTAS)
    assert [(one["entity"], one["quotas"]) for one in listed["quotas"]] == [
        (both, {"producer_byte_rate": 10})
    ]
    target = f"{QUOTAS}?user=a&default_client_id=true"
    assert (await http.ask("DELETE", f"{target}&dry_run=true"))[0] == 200
    assert (await http.ask("GET", QUOTAS))[1]["quotas"]
    assert (await http.ask("DELETE", target))[0] == 200
    assert await http.ask("GET", QUOTAS) == (200, {"quotas": []})


@on_the_web
async def test_contradictory_or_incomplete_quotas_are_refused(http: Web) -> None:
    rate = {"producer_byte_rate": 10}
    for body in (
        {"set": rate},
        {"user": "a", "default_user": True, "set": rate},
        {"user": "a", "ip": "127.0.0.1", "set": rate},
        {"ip": "127.0.0.1", "set": rate},
        {"user": "a", "set": rate, "reset": [*rate]},
    ):
        status, answer = await http.ask("PATCH", QUOTAS, body)
        assert status in {400, 409}, answer
    assert await http.ask("GET", QUOTAS) == (200, {"quotas": []})


@on_the_web
async def test_calls_over_the_rate_get_429_until_the_quota_is_deleted(
    http: Web,
) -> None:
    await http.node.topics.create("t")
    quota = {"default_user": True, "set": {"producer_byte_rate": 100}}
    assert (await http.ask("PATCH", QUOTAS, quota))[0] == 200
    body = {"records": [{"value": "v" * 600}]}
    status, answer = await http.ask("POST", RECORDS, body)
    assert status == 200, answer
    status, problem = await http.ask("POST", RECORDS, body)
    assert (status, problem["retriable"]) == (429, True)
    assert 1 <= int(http.answered["retry-after"]) <= 7
    assert (await http.ask("GET", f"{RECORDS}?partition=0&offset=0"))[0] == 200
    assert (await http.ask("DELETE", f"{QUOTAS}?default_user=true"))[0] == 200
    assert (await http.ask("POST", RECORDS, body))[0] == 200


@on_the_web
async def test_places_sent_to_a_follower_count_against_its_quota(http: Web) -> None:
    await http.node.topics.create("t", 200)
    quota = {"default_user": True, "set": {"consumer_byte_rate": 100}}
    assert (await http.ask("PATCH", QUOTAS, quota))[0] == 200
    assert (await http.ask("GET", RECORDS))[0] == 200
    async with followed(http, "/v1/topics/t/tail") as following:
        assert len(await following("place")) > 700, "more than it may have at once"
        assert (await http.ask("GET", RECORDS))[0] == 429


@on_the_web
async def test_each_client_id_has_its_own_quota(http: Web) -> None:
    await http.node.topics.create("t")
    quota = {"client_id": "loader", "set": {"producer_byte_rate": 100}}
    assert (await http.ask("PATCH", QUOTAS, quota))[0] == 200
    body = {"records": [{"value": "v" * 600}]}
    for _ in range(2):
        assert (await http.ask("POST", RECORDS, body))[0] == 200
    assert (await http.ask("POST", RECORDS, body, x_client_id="loader"))[0] == 200
    assert (await http.ask("POST", RECORDS, body, x_client_id="loader"))[0] == 429
    assert (await http.ask("POST", RECORDS, body))[0] == 200


@on_the_web
async def test_partitions_are_created_and_deleted_at_the_rate(http: Web) -> None:
    quota = {"default_user": True, "set": {"controller_mutation_rate": 1}}
    assert (await http.ask("PATCH", QUOTAS, quota))[0] == 200
    many = {"partitions": 30}
    assert (await http.ask("POST", "/v1/topics?dry_run=true", {"name": "a", **many}))[0] == 200
    assert (await http.ask("POST", "/v1/topics", {"name": "a", **many}))[0] == 201
    assert (await http.ask("POST", "/v1/topics", {"name": "b"}))[0] == 429
    assert (await http.ask("PATCH", "/v1/topics/a", {"partitions": 31}))[0] == 429
    assert (await http.ask("DELETE", "/v1/topics/a"))[0] == 429
    assert "a" in http.node.topics.by_name
    assert (await http.ask("DELETE", f"{QUOTAS}?default_user=true"))[0] == 200
    assert (await http.ask("DELETE", "/v1/topics/a"))[0] == 200


@on_the_web
async def test_whoever_has_used_up_a_quota_of_time_may_delete_it(http: Web) -> None:
    quota = {"default_user": True, "set": {"request_percentage": 1}}
    assert (await http.ask("PATCH", QUOTAS, quota))[0] == 200
    while (status := (await http.ask("GET", "/v1/topics"))[0]) == 200:
        pass
    assert status == 429
    assert (await http.ask("GET", QUOTAS))[0] == 200
    assert (await http.ask("DELETE", f"{QUOTAS}?default_user=true"))[0] == 200
    assert (await http.ask("GET", "/v1/topics"))[0] == 200
