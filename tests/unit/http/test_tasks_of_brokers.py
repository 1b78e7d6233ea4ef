"""Tasks of a cluster: any broker lists, shows, follows and cancels those of all."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.unit.http.test_queues_of_brokers import TOPIC, with_brokers
from tests.unit.http.test_whole_topics import webs_of

from headrace.broker.services.owner_calls import OwnerCalls
from headrace.http import background


async def searched(webs):
    """The id of a search that the first broker has done."""
    await webs[0].send(*({"key": "k", "value": f"{number}"} for number in range(5)))
    status, task = await webs[0].ask("POST", "/v1/searches", {"topic": TOPIC, "key": "k"})
    assert (status, task["broker"]) == (202, 1)

    async def is_done():
        (found,) = (await webs[1].ok("GET", "/v1/searches"))["searches"]
        return found["state"] == "done"

    async with asyncio.timeout(60):
        while not await is_done():
            await asyncio.sleep(0.01)
    return task["id"]


@with_brokers(3)
async def test_any_broker_shows_and_removes_the_tasks_of_all(cluster):
    webs = await webs_of(cluster)
    task = await searched(webs)
    for web in webs:
        answer = await web.ok("GET", "/v1/searches")
        assert [(one["id"], one["broker"]) for one in answer["searches"]] == [(task, 1)]
        assert "failed" not in answer
        assert (await web.ok("GET", "/v1/traces"))["traces"] == []
        first = await web.ok("GET", f"/v1/searches/{task}?limit=3")
        token = first["next_page_token"]
        rest = await web.ok("GET", f"/v1/searches/{task}?limit=3&page_token={token}")
        assert "next_page_token" not in rest
        values = [one["value"] for one in first["results"] + rest["results"]]
        assert sorted(values) == [f"{number}" for number in range(5)]
        _, data = await web.raw("GET", f"/v1/searches/{task}/events", b"", "application/json")
        assert data.decode().count('"state":"log"') == 5
        assert data.decode().rstrip().rpartition("event: ")[2].startswith("end")
    assert (await webs[1].ask("GET", f"/v1/traces/{task}"))[0] == 404, "of another kind"
    removed = await webs[2].ok("DELETE", f"/v1/searches/{task}")
    assert (removed["id"], removed["state"]) == (task, "done")
    assert (await webs[0].ask("GET", f"/v1/searches/{task}"))[0] == 404


@with_brokers(3)
async def test_who_knows_the_broker_of_a_task_asks_no_other(cluster):
    webs = await webs_of(cluster)
    task = await searched(webs)
    asked = []
    for web in webs:
        calls = web.node.services.calls

        async def carry_out(*given, calls=calls):
            asked.append(calls.broker_id)
            return await OwnerCalls.carry_out(calls, *given)

        calls.carry_out = carry_out
    answer = await webs[1].ok("GET", "/v1/searches?broker=1")
    assert [one["id"] for one in answer["searches"]] == [task]
    assert (await webs[1].ok("GET", f"/v1/searches/{task}?broker=1"))["state"] == "done"
    assert asked == [1, 1]
    assert (await webs[1].ok("GET", "/v1/searches?broker=3"))["searches"] == []
    assert (await webs[1].ask("GET", f"/v1/searches/{task}?broker=3"))[0] == 404
    answer = await webs[1].ok("GET", "/v1/searches?broker=9")
    assert (answer["searches"], [one["broker"] for one in answer["failed"]]) == ([], [9])
    assert asked == [1, 1, 3, 3]


@with_brokers(3)
async def test_a_broker_that_is_away_is_said_and_its_tasks_are_not_unknown(cluster):
    webs = await webs_of(cluster)
    task = await searched(webs)
    await cluster.rigs[1].face.close()
    answer = await webs[1].ok("GET", "/v1/searches")
    assert answer["searches"] == []
    assert [one["broker"] for one in answer["failed"]] == [1]
    status, refused = await webs[1].ask("GET", f"/v1/searches/{task}")
    assert (status, "broker 1" in refused["detail"]) == (503, True)
    assert (await webs[1].ask("DELETE", f"/v1/searches/{task}"))[0] == 503


@pytest.mark.parametrize("broker", [1, 2])
async def test_who_follows_a_quiet_task_gets_a_sign_of_life_before_a_proxy_gives_up(
    monkeypatch, broker
):
    slept_s = []

    async def sleep(time_s):
        slept_s.append(time_s)

    async def find(*_asked):
        return {"id": "t", "state": "running", "owner": "o", "result_count": 0}, []

    monkeypatch.setattr(background, "asyncio", SimpleNamespace(sleep=sleep))
    operations = object.__new__(background.TaskOperations)
    operations._broker_id, operations._find = 1, find
    call = SimpleNamespace(check_again=lambda: None, shown=lambda part: part)
    events = operations._events(broker, 0, call)
    assert b"event: progress" in await anext(events)
    for _ in range(3):
        assert (await anext(events)).startswith(b":")
        assert 10 <= sum(slept_s) <= 20, "many proxies wait for a minute, some for half of one"
        slept_s.clear()
