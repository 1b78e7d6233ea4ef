"""What holds for every answer over HTTP: under whose name, with which headers, how often."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
from tests.unit.http.http_rig import closed
from tests.unit.http.served_rig import BareFace, client, served

from headrace.http import answers, app, monitoring
from headrace.http.openapi import document
from headrace.http.problems import PROBLEM


@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:9180", b"127.0.0.1:1", b"[::1]:9180", b"10.0.0.1", b""]
)
def test_this_machine_and_addresses_in_figures_are_answered(host):
    assert app.is_own_host(host)


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"evil.example:9180",
        b"localhost:port",
        b"[::1]evil",
        b"localhost\nx",
        b"a" * 10_000,
    ],
)
def test_a_name_that_anybody_can_own_is_not(host):
    assert not app.is_own_host(host)


async def _ask(served: Any, path: str, host: bytes = b"localhost") -> tuple[int, dict, bytes]:
    heard: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        heard.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"host", host)]}
    scope |= {"query_string": b"", "http_version": "1.1", "root_path": ""}
    await served(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in heard[1:])
    return heard[0]["status"], dict(heard[0]["headers"]), body


def _served(monkeypatch: pytest.MonkeyPatch, render: Any) -> Any:
    monkeypatch.setattr(monitoring, "Metrics", lambda *_: SimpleNamespace(render=render))
    return app.make_servers(BareFace())[0].config.app


async def test_other_hosts_get_no_answer(monkeypatch):
    def render(_encoding) -> tuple[bytes, str]:
        return b"figures", "text/plain"

    asked = _served(monkeypatch, render)
    for path in [*(p for p in document([])["paths"]), "/nowhere"]:
        status, _headers, _body = await _ask(asked, path)
        assert status == (404 if path == "/nowhere" else 200)
        status, _headers, body = await _ask(asked, path, b"evil.example")
        assert status == 421
        assert b"figures" not in body


def test_every_answer_is_marked():
    async def broken(_scope, _receive, _send) -> None:
        raise OSError("a secret")

    async def statuses(answer, *requests: bytes) -> list[int]:
        found = []
        async with served(answer) as address:
            for request in requests:
                async with client(address) as one:
                    one.send(request)
                    status, headers, body = await one.response()
                    assert headers[b"x-content-type-options"] == b"nosniff", request
                    assert b"server" not in headers
                    assert b"secret" not in body
                    found.append(status)
        return found

    end = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asked = [b"GET /healthz", b"GET /nowhere", b"POST /healthz", b"GET /healthz/"]
    evil = b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    found = asyncio.run(statuses(None, *(one + end for one in asked), evil))
    assert found == [200, 404, 405, 307, 421]
    assert asyncio.run(statuses(broken, b"GET /" + end)) == [500]


async def test_the_openapi_document_lists_exactly_the_served_operations(monkeypatch):
    asked = _served(monkeypatch, None)
    _status, _headers, body = await _ask(asked, "/openapi.json")
    told = {
        (path, method.upper())
        for path, methods in json.loads(body)["paths"].items()
        for method in methods
    }
    face = BareFace()
    routes = app._Api(face, face.listeners[0], monitoring.Rendering(face), None, None).routes
    assert told == {(one.path, method) for one in routes for method in one.methods - {"HEAD"}}


def _operations_of(face: Any) -> list[dict[str, Any]]:
    routes = app._Api(face, face.listeners[0], monitoring.Rendering(face), None, None)
    return [
        one
        for path, methods in routes._document["paths"].items()
        if path.startswith("/v1/")
        for one in methods.values()
    ]


def test_every_operation_has_a_typed_answer_with_an_example():
    face = BareFace()
    operations = _operations_of(face)
    assert {one["operationId"] for one in operations} == set(answers.ANSWERS)
    schemas = {"components": {"schemas": closed(answers.components())}}
    for operation in operations:
        successes = {status: one for status, one in operation["responses"].items() if status < "3"}
        assert successes, operation["operationId"]
        for success in successes.values():
            for content in success["content"].values():
                checked = jsonschema_rs.validator_for({**schemas, **content["schema"]})
                checked.validate(content["example"])


def test_every_error_is_problem_details():
    for operation in _operations_of(BareFace()):
        for status, answer in operation["responses"].items():
            if status >= "4":
                assert list(answer["content"]) == [PROBLEM], (operation["operationId"], status)


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"GET /nowhere", 404),
        (b"POST /healthz", 405),
        (b"DELETE /openapi.json", 405),
        (b"PUT /v1/topics", 405),
        (b"DELETE /", 405),
    ],
)
async def test_unknown_paths_and_methods_get_problem_details(request_line, expected):
    async with served(None) as address, client(address) as one:
        one.send(request_line + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, headers, body = await one.response()
        told = json.loads(body)
        assert (status, told["status"]) == (expected, expected)
        assert headers[b"content-type"] == PROBLEM.encode()
        assert told["next_step"]
        assert (b"allow" in headers) == (expected == 405)


async def test_another_hosts_name_is_answered_with_problem_details(monkeypatch):
    asked = _served(monkeypatch, None)
    status, headers, body = await _ask(asked, "/v1/topics", b"evil.example")
    assert (status, json.loads(body)["status"]) == (421, 421)
    assert headers[b"content-type"] == PROBLEM.encode()


async def test_concurrent_scrapes_share_one_rendering(monkeypatch):
    begun = 0

    def render(_encoding) -> tuple[bytes, str]:
        nonlocal begun
        begun += 1
        time.sleep(0.01)
        return b"%d" % begun, "text/plain"

    asked = _served(monkeypatch, render)
    answers = await asyncio.gather(*(_ask(asked, "/metrics") for _ in range(50)))
    assert {answer[0] for answer in answers} == {200}
    assert begun <= 2
    status, _headers, body = await _ask(asked, "/metrics")
    assert (status, int(body)) == (200, begun), "a later one sees what has happened since"
    too_many = monitoring.ASKING_MAX + 10
    answers = await asyncio.gather(
        *(_ask(asked, "/metrics") for _ in range(too_many)), _ask(asked, "/healthz")
    )
    statuses = [answer[0] for answer in answers]
    assert statuses.count(503) == 10
    assert statuses[-1] == 200, "a health check comes through beside them"


def test_a_failed_rendering_is_tried_again(monkeypatch, caplog):
    calls = 0

    def render(_encoding) -> tuple[bytes, str]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("once")
        return b"well", "text/plain"

    async def scenario() -> None:
        asked = _served(monkeypatch, render)
        with pytest.raises(RuntimeError, match="once"):
            await _ask(asked, "/metrics")
        assert (await _ask(asked, "/metrics"))[2] == b"well"

    asyncio.run(scenario())
    assert "metrics" in caplog.text
