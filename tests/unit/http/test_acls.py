"""Access control lists over HTTP: listed, added, removed and explained."""

from __future__ import annotations

from tests.unit.http.http_rig import Web, on_the_web
from tests.unit.http.test_authorization import guarded

RULE = {
    "permission": "allow",
    "principal": "User:alice",
    "operation": "READ",
    "resource": "topic",
    "name": "orders",
}


async def test_rules_are_added_listed_explained_and_removed(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        before = web.node.audit.changed_total
        status, dry = await web.ask("POST", "/v1/acls?dry_run=true", RULE)
        assert (status, dry["existed"], dry["dry_run"]) == (200, False, True)
        assert (await web.ask("GET", "/v1/acls"))[1]["acls"] == []
        assert web.node.audit.changed_total == before
        status, made = await web.ask("POST", "/v1/acls", RULE)
        assert (status, made["acl"]["host"], made["acl"]["pattern"]) == (200, "*", "literal")
        assert web.node.audit.changed_total == before + 1
        assert (await web.ask("POST", "/v1/acls", RULE))[1]["existed"] is True
        prefix = {**RULE, "permission": "deny", "name": "ord", "pattern": "prefixed"}
        _, denied = await web.ask("POST", "/v1/acls", {**prefix, "host": "10.0.0.1"})
        for query, count in (
            ("?principal=User:alice", 2),
            ("?name=orders", 2),
            ("?name=orders&resource=group", 0),
            ("?name=other", 0),
        ):
            assert len((await web.ask("GET", f"/v1/acls{query}"))[1]["acls"]) == count, query
        question = {one: RULE[one] for one in ("principal", "operation", "resource", "name")}
        _, answer = await web.ask("POST", "/v1/acl-explanations", question)
        assert (answer["allowed"], answer["acls"]) == (True, [made["acl"]])
        asked = {**question, "host": "10.0.0.1"}
        _, answer = await web.ask("POST", "/v1/acl-explanations", asked)
        assert answer["allowed"] is False
        assert answer["reason"].startswith("this rule decides: deny User:alice READ")
        path = f"/v1/acls/{denied['acl']['id']}"
        assert (await web.ask("DELETE", f"{path}?dry_run=true"))[0] == 200
        assert (await web.ask("DELETE", path))[1]["acl"] == denied["acl"]
        status, _gone = await web.ask("DELETE", path)
        assert status == 404
        _, answer = await web.ask("POST", "/v1/acl-explanations", asked)
        assert answer["allowed"] is True


async def test_malformed_rules_get_the_documented_error(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        for change in (
            {"principal": "alice"},
            {"operation": "read"},
            {"resource": "cluster"},
            {"pattern": "match"},
            {"name": ""},
        ):
            assert (await web.ask("POST", "/v1/acls", {**RULE, **change}))[0] == 400, change
        cluster = {**RULE, "resource": "cluster", "name": "kafka-cluster"}
        assert (await web.ask("POST", "/v1/acls", cluster))[0] == 200


@on_the_web
async def test_without_an_authorizer_it_says_how_to_get_one(web: Web) -> None:
    status, problem = await web.ask("GET", "/v1/acls")
    assert (status, "no authorizer" in problem["detail"]) == (409, True)
    assert "headrace.authorizer=acl" in problem["next_step"]
