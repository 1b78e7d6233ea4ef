"""Tenants over HTTP: each operation, by a client of the tenant and by others, who learn nothing.

The requests are made from the operations' own schemas, so that an operation that is added is tested
here, too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from starlette.responses import Response
from tests.unit.http.test_authorization import GROUP, NAMED, TOPIC, guarded
from tests.unit.http.test_overview import Stream

from headrace.broker.security.access import How
from headrace.broker.security.acls import Acl, AclFilter, Entry, Pattern, Permission
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_ownership import OF_TENANTS
from headrace.broker.security.tenant_shares import PLACES_PARTS, USER_FACTOR
from headrace.broker.services import fair_shares
from headrace.broker.services.fair_shares import ALONE
from headrace.broker.services.ledger_map import ObjectsOfPartition
from headrace.broker.services.tenant_view import TenantView
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.coordination.quotas.entities import PRODUCER
from headrace.errors import StorageUnavailable
from headrace.http import redrives
from headrace.http.access import ACCESS
from headrace.http.metric_table import metric_of
from headrace.http.operations import NDJSON, SLASH
from headrace.http.records import FOLLOWERS_MAX
from headrace.http.tenancy import ALSO, OF_OPERATORS, leave, leave_response
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.tenant_names import DEFAULT
from headrace.runtime.figures import Figures

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.http.test_authorization import NamedWeb

    from headrace.broker.services.fair_shares import Charge

KEY, LETTERS = "«acme»", "secret-letters"
TENANTS = "acme=User:alice;beta=User:carol"
OF_CLUSTER = {
    name
    for name, access in ACCESS.items()
    if any(need.kind not in OF_TENANTS and need.how is not How.SHOWN for need in access.needs)
}
READS = [name for name in NAMED if re.match("get|list|find|read|trace|explain|queue|summ", name)]
TOGETHER = [READS, *([name] for name in NAMED if name not in READS)]
"""Operations that can be asked on one broker, since they change nothing."""
CONFIG = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": LETTERS,
}
RECORDS: list[dict[str, Any]] = [
    {"value": "first", "headers": [["headrace-message-id", "x"]]},
    {"value": "«acme»second"},
    {"value": "later", "headers": [["headrace-delay", "3600000"]]},
    {"value": "half", "headers": [["headrace-half", GROUP], ["headrace-message-id", "h"]]},
]


async def fill(web: NamedWeb) -> None:
    """A topic with messages of all states, a group, and a dead letter topic with a letter."""

    async def ask(method: str, path: str, body: Any) -> Any:
        status, answer = await web.ask(method, path, body)
        assert status < 300, (path, answer)
        return answer

    for name in (TOPIC, LETTERS):
        body = {"name": name, "config": {"headrace.message.type": "mixed"}}
        await ask("POST", "/v1/topics", body)
    await ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": CONFIG})
    sent = await ask("POST", f"/v1/topics/{TOPIC}/records", {"records": RECORDS})
    assert [one["ok"] for one in sent["results"]] == [True] * len(RECORDS)
    queue = f"/v1/queues/{TOPIC}/{GROUP}"
    got = await ask("POST", f"{queue}/receive", {"max": 1, "wait_ms": 60_000})
    receipt = got["messages"][0]["receipt"]
    await ask("POST", f"{queue}/settle", {"dead_letter": [{"receipt": receipt, "reason": "no"}]})
    copied = 0
    while not copied:
        page = await ask("GET", f"/v1/topics/{LETTERS}/records?partition=0&offset=0", None)
        copied = len(page["records"])
        await asyncio.sleep(0.01)


@asynccontextmanager
async def filled(monkeypatch: pytest.MonkeyPatch, **more: Any) -> AsyncIterator[NamedWeb]:
    """A broker where alice has filled her names."""
    async with guarded(monkeypatch, **more) as web:
        await web.node.services.topics.delete(TOPIC)
        rules = [
            Acl(Pattern(kind, "*"), Entry(f"User:{who}", "*", Operation.ALL, Permission.ALLOW))
            for kind in OF_TENANTS
            for who in ("alice", "dave")
        ]
        assert web.node.access is not None
        await web.node.access.create(rules)
        web.principal = "alice"
        await fill(web)
        yield web


def plain(answer: Any) -> str:
    """An answer without what differs from one broker to the next."""
    text = json.dumps(answer, ensure_ascii=False, sort_keys=True)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{12,32}\b", "ID", text)
    text = re.sub(
        r'"(cluster_id|receipt|next_page_token|id|secret|key|member)": "[^"]*"', r'"\1": "R"', text
    )
    text = re.sub(r'"(\w+_ms|size_bytes|bytes\w*|at|lag_ms)": -?\d+', r'"\1": 0', text)
    return re.sub(r"\d{13}", "T", text)


async def answered(web: NamedWeb, name: str, prefix: str = "", absent: str = "") -> tuple[int, str]:
    """What an operation answers about the topic, or about one that does not exist."""
    topic, group = TOPIC, GROUP
    if "dead-letters" in web.by_name()[name].path:
        topic = LETTERS
    if absent:
        topic, group = (one.replace("secret", absent) for one in (topic, group))
    if name in {"followTopic", "exportMessages"}:
        return 0, ""
    status, answer = await web.call(name, topic=prefix + topic, group=prefix + group)
    return status, plain(answer)


def has_no_id(web: NamedWeb) -> bool:
    """Whether the cluster's own id was not in what clients were answered since this was asked."""
    found = web.node.cluster_id.encode() in web.received
    web.received.clear()
    return not found


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
async def test_a_client_learns_nothing_of_what_another_tenant_has(names, monkeypatch):
    """What exists there is answered as what exists nowhere, and stays as it is, also by names that
    are written as the broker stores them. One client is of another tenant, one has all rights to
    all topics, groups and transactional ids of the default tenant."""

    async with filled(monkeypatch, tenants=TENANTS) as web:
        held = web.node.topics.get(KEY + TOPIC)
        for name, prefix in itertools.product(names, ("", KEY, KEY + KEY)):
            for web.principal in ("carol", "dave"):
                status, text = await answered(web, name, prefix)
                if not prefix:
                    assert "«" not in text
                other, absent = await answered(web, name, prefix, "absent")
                assert (status, text.replace("secret", "absent")) == (other, absent), name
                assert has_no_id(web) or web.principal == "dave", name
        assert web.node.topics.get(KEY + TOPIC) is held
        assert held.fact.partition_count == 1
        assert held.require_log(0).high_watermark == 2


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
async def test_a_tenants_client_is_answered_as_without_tenants(names, monkeypatch):
    """By the same names, with the same answers, none of which has a key."""

    mine = set(names) - OF_CLUSTER

    async with filled(monkeypatch, tenants="acme=User:alice") as web:
        for name in OF_CLUSTER.intersection(names):
            assert (await answered(web, name))[0] == 403
        of_tenant = {name: await answered(web, name) for name in names if name in mine}
        assert has_no_id(web)
    async with filled(monkeypatch) as web:
        assert {name: await answered(web, name) for name in of_tenant} == of_tenant
    assert "«" not in str(of_tenant).replace("«acme»second", "")


async def test_a_tenants_client_sees_a_cluster_id_of_its_own_wherever_one_is(monkeypatch):
    """Also as a part of a name or a text. Contents of messages stay as they are."""

    async with filled(monkeypatch, tenants=TENANTS) as web:
        own = web.node.cluster_id
        record = {"value": own, "key": own, "headers": [["cluster_id", own]]}
        await web.ask("POST", f"/v1/topics/{TOPIC}/records", {"records": [record]})

        async def objects(*_: Any) -> ObjectsOfPartition:
            return ObjectsOfPartition(f"{own}-worker-1", [], None)

        async def failing(*_: Any) -> Any:
            raise StorageUnavailable(f"{own}/ledgers/0 cannot be read")

        monkeypatch.setattr(web.node.services.ledgers, "objects_of", objects)
        monkeypatch.setattr(web.node.services.ledgers, "of_partition", failing)
        for web.principal, prefix, tenant in (
            ("alice", "", "acme"),
            ("root", KEY, DEFAULT),
            ("dave", "", DEFAULT),
        ):
            shown = tenants_cluster_id(own, tenant)
            _, cluster = await web.ask("GET", "/v1/cluster")
            assert cluster["cluster_id"] == shown
            if web.principal == "dave":
                continue
            topic = f"/v1/topics/{prefix}{TOPIC}"
            _, found = await web.ask("GET", f"{topic}/objects/0")
            assert found["prefix"] == f"{shown}-worker-1"
            status, problem = await web.ask("GET", f"{topic}/ledgers?partition=0")
            assert (status, problem["detail"]) == (503, f"{shown}/ledgers/0 cannot be read")
            _, page = await web.ask("GET", f"{topic}/records?partition=0&offset=1")
            (read,) = (one for one in page["records"] if one["key"] == own)
            assert (read["value"], read["headers"]) == (own, [["cluster_id", own]])


async def test_streams_exports_and_tasks_have_the_tenants_names(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        for form in ("ndjson", "csv"):
            path = f"/v1/topics/{TOPIC}/export?format={form}"
            status, data = await web.raw("GET", path, b"")
            assert status == 200
            assert "«" not in data.decode().replace("«acme»second", "")
            assert web.answered["content-disposition"].endswith(f'"{TOPIC}.{form}"')
        _, task = await web.ask("POST", "/v1/searches", {"topic": TOPIC})
        assert task["asked"] == {"topic": TOPIC}
        path = f"/v1/searches/{task['id']}"
        _status, data = await web.raw("GET", f"{path}/events", b"")
        assert b"event: end" in data
        assert "«" not in data.decode().replace("\\u00abacme\\u00bbsecond", "")
        assert "\\u00abacme\\u00bbsecond" in data.decode()
        _, found = await web.ask("GET", path)
        assert {one["topic"] for one in found["results"]} == {TOPIC, LETTERS}
        assert has_no_id(web)
        web.principal = "carol"
        for path in (f"/v1/topics/{TOPIC}/export", f"/v1/topics/{TOPIC}/tail"):
            assert (await web.raw("GET", path, b""))[0] == 404
        assert (await web.ask("GET", f"/v1/searches/{task['id']}"))[0] == 404


async def test_operators_name_what_tenants_have_by_tenant_and_name(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "root"
        status, topic = await web.ask("GET", f"/v1/topics/{KEY}{TOPIC}")
        assert (status, topic["name"]) == (200, f"acme/{TOPIC}")
        _, listed = await web.ask("GET", "/v1/topics")
        assert [one["name"] for one in listed["topics"]] == [f"acme/{LETTERS}", f"acme/{TOPIC}"]
        _, causes = await web.ask("GET", f"/v1/dead-letters/{KEY}{LETTERS}")
        assert [one["origin"] for one in causes["causes"]] == [f"acme/{TOPIC}"]
        _, found = await web.ask("GET", f"/v1/topics/{KEY}{TOPIC}/messages")
        assert {one["topic"] for one in found["messages"]} == {f"acme/{LETTERS}", f"acme/{TOPIC}"}


async def test_what_operators_write_for_a_topic_is_read_in_all_places(monkeypatch):
    """Also where its name is a part of a text, or what a letter's origin is compared with."""
    async with filled(monkeypatch, tenants=TENANTS) as web:
        spellings = (("root", KEY), ("root", "acme/"), ("alice", ""))
        for web.principal, prefix in spellings:
            desk = f"/v1/dead-letters/{KEY if prefix else ''}{LETTERS}"
            for query, count in (
                (f"origin={prefix}{TOPIC}&group={KEY if prefix else ''}{GROUP}", 1),
                (f"origin={prefix}other", 0),
                (f"group={prefix}other", 0),
            ):
                status, found = await web.ask("GET", f"{desk}/letters?{quote(query, safe='=&')}")
                assert (status, len(found.get("letters", ()))) == (200, count), (query, found)
            sent = [{"letter": "0:0", "to": f"{prefix}{TOPIC}-0:0"}]
            status, taken = await web.ask("POST", f"{desk}/take-back", {"sent": sent})
            assert status == 200, taken
            (result,) = taken["results"]
            assert result["to"] == f"{'acme/' if prefix else ''}{TOPIC}-0:0"
            assert "error" not in result, "it was found, and is no redriven record"
        for web.principal, prefix in spellings[:2]:
            stream = Stream(web, f"/v1/events?topic={quote(prefix + TOPIC)}")
            while (shown := await stream.next())[1] != "topic":
                pass
            assert shown[2]["topic"] == f"acme/{TOPIC}"
            await stream.end()


async def test_a_received_message_names_its_group_as_the_client_writes_it(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        for web.principal, prefix in (("root", "acme/"), ("alice", "")):
            path = f"/v1/queues/{quote(prefix, safe='')}{TOPIC}/{quote(prefix, safe='')}{GROUP}"
            status, got = await web.ask("POST", f"{path.replace('%2F', SLASH)}/receive", {"max": 1})
            assert (status, got["topic"], got["group"]) == (200, prefix + TOPIC, prefix + GROUP)


async def test_a_group_that_selects_what_is_answered_is_read_as_the_client_writes_it(monkeypatch):
    """Commits of the past, and letters to redrive."""
    started: list[list[str]] = []

    async def follow(task: Any, arguments: list[str], environment: Any) -> None:
        started.append(arguments)

    monkeypatch.setattr(redrives, "_follow", follow)
    async with filled(monkeypatch, tenants=TENANTS) as web:
        commit = [OffsetToCommit(KEY + TOPIC, 0, 1)]
        await web.node.services.groups.ensure_offsets_topic()
        for group in (f"{KEY}billing", f"{KEY}other"):
            command = CommitCommand(group, NO_GENERATION, "", None, commit)
            reply = await web.node.services.groups.commit(command)
            assert [one.error for one in reply.results] == [None]
        web.rig.clock.ahead_ms += 1_000
        for web.principal, prefix in (("root", "acme/"), ("alice", "")):
            topic, letters = (f"{KEY if prefix else ''}{one}" for one in (TOPIC, LETTERS))
            _, past = await web.ask("GET", f"/v1/topics/{topic}/past-offsets?group={prefix}billing")
            assert [one["group"] for one in past["groups"]] == [f"{prefix}billing"]
            redrive = {"topic": letters, "to": topic, "group": f"{prefix}{GROUP}"}
            status, task = await web.ask("POST", "/v1/redrives", redrive)
            assert (status, task["asked"]["group"]) == (202, f"{prefix}{GROUP}")
            while not started:
                await asyncio.sleep(0)
            assert f"--group={KEY}{GROUP}" in started.pop()


async def test_each_field_of_a_request_that_names_something_is_read_as_operators_write_it(
    monkeypatch,
):
    naming = {"topic", "group", "origin", "to", "user", "principal", "principals"}
    by_handlers = {"signIn body.user", "createKey body.user"}

    def named(schema: Any, place: str) -> set[str]:
        parts = [named(one, place) for kind in ("oneOf", "anyOf") for one in schema.get(kind, ())]
        parts += [named(schema["items"], place)] if "items" in schema else []
        fields = schema.get("properties", {})
        parts += [named(one, f"{place}.{field}") for field, one in fields.items()]
        return {f"{place}.{one}" for one in naming & fields.keys()}.union(*parts)

    async with guarded(monkeypatch) as web:
        for operation in web.by_name().values():
            parameters = naming & operation.parameters.keys()
            places = {
                f"{'path' if f'{{{one}}}' in operation.path else 'query'}.{one}"
                for one in parameters
            }
            places |= named(operation.body or {}, "body")
            read = {one.of for one in operation.access.needs if one.how is not How.SHOWN}
            read |= {*ALSO.get(operation.name, ()), *OF_OPERATORS.get(operation.name, ())}
            unread = {f"{operation.name} {one}" for one in places - read}
            assert unread <= by_handlers, operation.name


async def test_a_tenants_stream_has_its_topic_and_nothing_of_the_cluster(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "alice"
        assert (await web.ask("GET", "/v1/events"))[0] == 403
        absent = [
            str(await web.ask("GET", f"/v1/events?topic={quote(name)}")).replace(name, "NAME")
            for name in (f"acme-{TOPIC}", "absent")
        ]
        assert absent[0] == absent[1]
        stream = Stream(web, f"/v1/events?topic={TOPIC}")
        web.history.take()
        number, kind, shown = await stream.next()
        assert (number, kind, shown["topic"]) == ("", "topic", TOPIC)
        ended = shown["offsets"][0][-1]
        await web.ask("POST", f"/v1/topics/{TOPIC}/records", {"records": [{"value": "x"}]})
        web.history.take()
        number, kind, shown = await stream.next()
        assert (number, kind, shown["offsets"][0][-1]) == ("", "topic", ended + 1)
        assert web.node.access is not None
        denied = Entry("User:alice", "*", Operation.DESCRIBE, Permission.DENY)
        await web.node.access.create([Acl(Pattern(ResourceType.TOPIC, KEY + TOPIC), denied)])
        web.history.take()
        _, kind, shown = await stream.next()
        assert (kind, shown["status"]) == ("problem", 403)
        assert KEY not in str(shown)
        await stream.end()
        web.principal = "carol"  # of the other tenant
        assert (await web.ask("GET", f"/v1/events?topic={TOPIC}"))[0] == 404


@pytest.mark.parametrize("path", [f"/v1/topics/{TOPIC}/tail", f"/v1/events?topic={TOPIC}"])
async def test_a_tenant_leaves_other_tenants_places_for_streams(path, monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "alice"
        part = FOLLOWERS_MAX // PLACES_PARTS
        of_one = 1 + part * USER_FACTOR // (1 + USER_FACTOR)  # of its users
        streams = [Stream(web, path) for _ in range(of_one)]
        for one in streams:
            await one.begun.wait()
        status, answer = await web.ask("GET", path)
        assert (status, answer["retriable"]) == (503, True)
        assert f"the user has {of_one} clients that follow" in answer["detail"]
        web.principal = "carol"
        await web.ask("POST", "/v1/topics", {"name": TOPIC})
        other = Stream(web, path)
        await other.begun.wait()
        assert other.status == 200
        for one in (*streams, other):
            await one.end()
        web.principal = "alice"
        again = Stream(web, path)
        await again.begun.wait()
        assert again.status == 200
        await again.end()


def test_counts_by_topic_have_topics_as_the_client_writes_them():
    result = {"sent": {KEY + TOPIC: 2}, "origin_unverified": {KEY + TOPIC: 1}, "kept": 0}
    for view, name in (
        (TenantView(is_operator=True), f"acme/{TOPIC}"),
        (TenantView(KEY), TOPIC),
    ):
        shown = {"sent": {name: 2}, "origin_unverified": {name: 1}, "kept": 0}
        assert leave(view, result) == shown


def marked(value: Any, field: str = "") -> set[str]:
    """The fields in which there is a key."""
    if isinstance(value, dict):
        return {field for name, item in value.items() for field in marked(item, name)}
    if isinstance(value, list):
        return {one for item in value for one in marked(item, field)}
    return {field} if isinstance(value, str) and "«" in value else set()


@pytest.mark.parametrize(
    ("view", "shown"),
    [(TenantView(KEY), "orders-0"), (TenantView(is_operator=True), "acme/orders-0")],
)
def test_what_texts_are_made_of_is_written_as_the_texts_are(view, shown):
    """Of findings, problems and reasons; the contents of a message are no texts."""
    place = f"{KEY}orders-0"
    finding = {"sentence": f"{place} has it", "next_step": "", "kind": "hot_partition"}
    finding |= {"evidence": {"partition": place, "partitions": [place]}}
    problem = {"code": "damaged", "what": place, "cause": f"{place} is damaged"}
    values = {"partition": place, "count": 1}
    message = {"value": place, "decoded": {"topic": place, "what": place, "values": {"x": place}}}
    for asked in (finding, problem):
        written = leave(view, {"found": [asked | {"values": values}]})
        assert "«" not in json.dumps(written, ensure_ascii=False)
        assert written["found"][0]["values"] == {"partition": shown, "count": 1}
    assert leave(view, {"messages": [message]}) == {"messages": [message]}


async def test_operators_get_names_as_they_write_them_in_every_answer(monkeypatch):
    """All but contents: a record's value stays as it was sent."""
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "root"
        topic, group, seen = KEY + TOPIC, KEY + GROUP, 0
        for path in (
            "/v1/topics?details=true",
            *(f"/v1/topics/{topic}{one}" for one in ("", "/config", "/ledgers", "/messages")),
            *(f"/v1/topics/{topic}/{one}" for one in ("delayed", "half", "records?partition=0")),
            *("/v1/dead-letters", f"/v1/dead-letters/{KEY}{LETTERS}"),
            f"/v1/dead-letters/{KEY}{LETTERS}/letters",
            f"/v1/queues/{topic}/{group}",
            *("/v1/groups", f"/v1/groups/{group}", f"/v1/groups/{group}/offsets"),
            *(f"/v1/groups/{group}/{one}" for one in ("config", "lag")),
            *("/v1/overview", "/v1/brokers?details=true", "/v1/tenants/acme"),
        ):
            status, found = await web.ask("GET", path)
            assert status == 200, (path, found)
            assert marked(found) <= {"value"}, (path, found)
            seen += "acme/" in json.dumps(found)
        assert seen > 10, "of a topic of the tenant"
        rule = {"principal": "User:x", "permission": "deny", "operation": "READ"}
        rule |= {"resource": "topic", "name": f"acme/{TOPIC}"}
        status, made = await web.ask("POST", "/v1/acls", rule)
        assert (status, made["acl"]["name"]) == (200, f"acme/{TOPIC}")
        _, same = await web.ask("POST", "/v1/acls", rule | {"name": KEY + TOPIC})
        assert (same["existed"], same["acl"]["id"]) == (True, made["acl"]["id"])
        _, listed = await web.ask("GET", f"/v1/acls?resource=topic&name=acme/{TOPIC}")
        assert f"acme/{TOPIC}" in [one["name"] for one in listed["acls"]]
        group_rule = rule | {"resource": "group", "name": "acme/g"}
        _, made = await web.ask("POST", "/v1/acls", group_rule)
        assert made["acl"]["name"] == "acme/g"
        _, other = await web.ask("POST", "/v1/acls", group_rule | {"name": "/acme/g"})
        assert other["acl"]["name"] == "/acme/g", "a group of the default tenant"
        assert web.node.access is not None
        rules = [one.pattern.name for one in web.node.access.find(AclFilter())]
        assert {f"{KEY}g", "acme/g"} <= {*rules}
        any_rule = rule | {"resource": "group", "name": f"acme/{TOPIC}"}
        await web.ask("POST", "/v1/acls", any_rule)
        _, listed = await web.ask("GET", f"/v1/acls?name=acme/{TOPIC}")
        named = {one["resource"] for one in listed["acls"] if one["name"] == f"acme/{TOPIC}"}
        assert named == {"topic", "group"}


async def test_a_name_with_a_slash_is_of_a_tenant_or_has_one_more_slash(monkeypatch):
    """Groups of the default tenant may be called like those of a tenant."""
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "dave"
        for group in ("acme/billing", "/acme/billing", "beta/x"):
            path = f"/v1/groups/{group.replace('/', SLASH)}/config"
            assert (await web.ask("PATCH", path, {"set": CONFIG}))[0] == 200
            _, found = await web.ask("GET", path)
            assert found["group"] == group, "a client that does not see the cluster"
        web.principal = "alice"
        path = f"/v1/groups/acme{SLASH}billing/config"
        more = {"share.record.lock.duration.ms": "15000"}
        assert (await web.ask("PATCH", path, {"set": more}))[0] == 200
        web.principal = "root"
        locks = {}
        for group in ("acme/billing", "/acme/billing", "//acme/billing", "acme/acme/billing"):
            path = f"/v1/groups/{group.replace('/', SLASH)}/config"
            _, found = await web.ask("GET", path)
            assert found["group"] == group
            named = {one["name"]: one["value"] for one in found["settings"]}
            locks[group] = (
                named["share.auto.offset.reset"],
                named["share.record.lock.duration.ms"],
            )
        assert locks["/acme/billing"] == locks["//acme/billing"] == ("earliest", "30000")
        assert locks["acme/acme/billing"] == ("latest", "15000")
        assert locks["acme/billing"] == ("latest", "30000")
        path = f"/v1/groups/acme{SLASH}billing/config"
        _, found = await web.ask("GET", path, **{"headrace-names": "keys"})
        assert found["group"] == "acme/billing", "by its key"
        named = {one["name"]: one["value"] for one in found["settings"]}
        assert named["share.auto.offset.reset"] == "earliest"


async def test_operators_write_users_and_principals_of_tenants_with_a_slash(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "root"
        rule = {"permission": "allow", "operation": "READ", "resource": "topic", "name": "t"}
        for principal in ("User:acme/boss", "User:/acme/boss"):
            _, made = await web.ask("POST", "/v1/acls", rule | {"principal": principal})
            assert made["acl"]["principal"] == principal
            _, listed = await web.ask("GET", f"/v1/acls?principal={principal}")
            assert [one["principal"] for one in listed["acls"]] == [principal]
        assert web.node.access is not None
        rules = {one.entry.principal for one in web.node.access.find(AclFilter(name="t"))}
        assert rules == {f"User:{KEY}boss", "User:acme/boss"}
        quota = {"user": "acme/boss", "client_id": "acme/boss", "set": {PRODUCER: 1_000}}
        _, made = await web.ask("PATCH", "/v1/quotas", quota)
        assert made["entity"] == {"user": "acme/boss", "client_id": "acme/boss"}
        ((entity, _),) = web.node.services.quotas.find()
        assert dict(entity) == {"user": f"{KEY}boss", "client-id": "acme/boss"}
        _, listed = await web.ask("GET", "/v1/quotas")
        assert [one["entity"] for one in listed["quotas"]] == [made["entity"]]
        assert (await web.ask("DELETE", "/v1/quotas?user=acme/boss&client_id=acme/boss"))[0] == 200
        assert not [*web.node.services.quotas.find()]


async def test_the_audit_log_has_names_as_operators_write_them(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    async with filled(monkeypatch, tenants=TENANTS) as web:
        await web.ask("DELETE", "/v1/groups/billing")
        web.principal = "carol"
        await web.ask("POST", "/v1/acls", {"principal": "User:x", "permission": "allow",
                      "operation": "READ", "resource": "topic", "name": "t"})  # fmt: skip
        web.principal = "dave"
        await web.ask("DELETE", f"/v1/groups/acme{SLASH}billing")
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "headrace.audit"]
    assert not [one for one in lines if "«" in json.dumps(one, ensure_ascii=False)]
    deleted = [one["resources"] for one in lines if one["request"] == "deleteGroup"]
    assert deleted == [["acme/billing"], ["/acme/billing"]]


def test_labels_of_metrics_have_names_as_operators_write_them():
    counted = Figures("headrace_topic_in_records")
    counted.add([KEY + TOPIC], 1)
    counted.add([TOPIC], 1)
    samples = metric_of(counted).samples
    assert [one.labels for one in samples] == [{"topic": f"acme/{TOPIC}"}, {"topic": TOPIC}]
    lag = Figures("headrace_group_lag_seconds")
    lag.add([KEY + GROUP, KEY + TOPIC], 1)
    lag.add(["acme/b", TOPIC], 1)
    of_tenant, other = metric_of(lag, has_tenants=True).samples
    assert of_tenant.labels == {"group": f"acme/{GROUP}", "topic": f"acme/{TOPIC}"}
    assert other.labels == {"group": "/acme/b", "topic": TOPIC}
    _, other = metric_of(lag).samples
    assert other.labels == {"group": "acme/b", "topic": TOPIC}, "without tenants"


async def test_an_empty_name_is_a_setting_that_is_empty(monkeypatch):
    """It is no key: records of the group would wait for a topic that cannot be."""

    async with filled(monkeypatch, tenants=TENANTS) as web:
        name = "errors.deadletterqueue.topic.name"
        path = f"/v1/groups/{GROUP}/config"
        status, _ = await web.ask("PATCH", path, {"set": {name: ""}})
        assert status == 200
        assert web.node.services.configurations.group_values(name) <= {""}
        web.principal = "root"
        path = f"/v1/groups/{KEY}{GROUP}/config"
        status, _ = await web.ask("PATCH", path, {"set": {name: KEY}})
        assert status == 409


async def test_names_of_a_tenant_are_as_long_as_others(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        group, name = "g" * 255, "t" * 249
        change = {"set": {"share.auto.offset.reset": "earliest"}}
        assert (await web.ask("PATCH", f"/v1/groups/{group}/config", change))[0] == 200
        assert (await web.ask("PATCH", f"/v1/groups/{group}g/config", change))[0] == 400
        assert (await web.ask("POST", "/v1/topics", {"name": name}))[0] == 201
        web.principal = "root"
        assert (await web.ask("PATCH", f"/v1/groups/{KEY}{group}/config", change))[0] == 200
        _, listed = await web.ask("GET", f"/v1/topics?prefix={quote(KEY)}{name}")
        assert [one["name"] for one in listed["topics"]] == [f"acme/{name}"]


def test_answers_that_are_not_one_json_value_are_left_as_they_are():
    view = TenantView(KEY)
    lines = Response('{"value":"«acme»a"}\n{"value":"b"}\n', media_type=NDJSON)
    assert leave_response(view, lines) is lines
    data = json.dumps({"topic": f"{KEY}a", "receipt": "\ud800"})
    found = leave_response(view, Response(data, media_type="application/json"))
    assert json.loads(bytes(found.body)) == {"topic": "a", "receipt": "\ud800"}


async def test_a_half_message_of_a_group_that_looks_like_a_key_is_no_tenants(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "root"
        config = {"headrace.message.type": "mixed"}
        await web.ask("POST", "/v1/topics", {"name": "open", "config": config})
        headers = [["headrace-half", KEY + GROUP], ["headrace-message-id", "h"]]
        forged = {"value": "x", "headers": headers}
        _, sent = await web.ask("POST", "/v1/topics/open/records", {"records": [forged]})
        assert sent["results"][0]["ok"], sent
        open_topic = web.node.topics.get("open")
        (hosted,) = [one for one in web.node.timers.host.hosted if one.topic is open_topic]
        for half in list(hosted.state.halves.saved()):
            hosted.state.halves._asked.setdefault(half.group, {})[half.number] = None
        assert hosted.state.halves.asked_groups()
        timers = web.node.services.timers
        assert (await timers.poll_checks(KEY + GROUP, 10, 0))[0] == []
        assert web.node.timers.halves._due([KEY + GROUP]) == []


async def test_a_letter_names_nothing_of_another_tenant(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/topics", {"name": "open.dead"})
        forged = [
            ["__dlq.errors.topic", f"«x»{KEY}{TOPIC}"],
            ["__dlq.errors.group", f"«x»{KEY}{GROUP}"],
        ]
        body = {"records": [{"value": "x", "headers": forged}]}
        await web.ask("POST", "/v1/topics/open.dead/records", body)
        _, answer = await web.ask("GET", "/v1/dead-letters/open.dead")
        assert [(one["origin"], one["group"]) for one in answer["causes"]] == [(None, None)]


async def test_the_scope_of_a_key_has_the_tenants_names(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        rule = {"operation": "READ", "resource": "topic", "name": TOPIC, "pattern": "literal"}
        anything = rule | {"name": "*"}
        body = {"name": "k", "scope": [rule, anything]}
        status, made = await web.ask("POST", "/v1/keys", body)
        assert status == 201
        assert made["scope"] == [rule, anything]
        key = web.node.services.issuers.keys.get(made["id"])
        assert key is not None
        assert [one.pattern.name for one in key.scope.rules] == [KEY + TOPIC, "*"]
        web.principal = "root"
        names = {"topic": f"acme/{TOPIC}", "group": "acme/g", "user": "User:acme/bob"}
        rules = [rule | {"resource": kind, "name": name} for kind, name in names.items()]
        status, made = await web.ask("POST", "/v1/keys", {"name": "o", "scope": rules})
        assert (status, made["scope"]) == (201, rules)
        key = web.node.services.issuers.keys.get(made["id"])
        stored = [one.pattern.name for one in key.scope.rules]
        assert stored == [KEY + TOPIC, f"{KEY}g", f"User:{KEY}bob"]


async def test_check_backs_of_producer_groups_of_one_name_stay_apart(monkeypatch):
    async with filled(monkeypatch, tenants=TENANTS) as web:
        topic = web.node.topics.get(KEY + TOPIC)
        timers = web.node.services.timers
        (hosted,) = [one for one in web.node.timers.host.hosted if one.topic is topic]
        for half in list(hosted.state.halves.saved()):
            hosted.state.halves._asked.setdefault(half.group, {})[half.number] = None
        assert (await timers.poll_checks(GROUP, 10, 0))[0] == []
        assert (await timers.poll_checks("«beta»" + GROUP, 10, 0))[0] == []
        _, answer = await web.ask("POST", f"/v1/half/{GROUP}/checks", {"wait_ms": 60_000})
        assert answer["group"] == GROUP
        assert [(one["topic"], one["group"]) for one in answer["checks"]] == [(TOPIC, GROUP)]


class Holder:
    def accepted(self, charge: Charge) -> None:
        charge.release()


async def test_clients_that_have_not_logged_in_have_no_share(monkeypatch):
    monkeypatch.setattr(fair_shares, "STALLED_S", 3_600)
    async with guarded(monkeypatch, tenants=TENANTS) as web:
        shares, web.principal = web.node.services.fair_shares, "ANONYMOUS"
        share = shares.of(ClientSession("HTTP", "127.0.0.1", ANONYMOUS))
        assert share is not None, "that of the cluster's own clients"
        held = share.take(Holder(), ALONE * web.node.config.tenant_request_bytes_max)
        assert held is not None
        until_s = shares._alone_from_s
        async with asyncio.timeout(60):
            assert (await web.ask("GET", "/v1/session"))[0] == 200
            await web.ask("POST", "/v1/session", {"user": "u", "password": "p"})
        assert shares.waits_total == 0
        assert shares._alone_from_s == until_s, "nor do they end that a tenant is alone"
        held.release()


async def test_what_waits_for_a_share_is_bounded(monkeypatch):
    monkeypatch.setattr(fair_shares, "STALLED_S", 3_600)
    async with guarded(monkeypatch, tenants=TENANTS) as web:
        shares = web.node.services.fair_shares
        alice, carol = (
            shares.of(ClientSession("HTTP", "127.0.0.1", Principal(name)))
            for name in ("alice", "carol")
        )
        holders = [
            share.take(Holder(), ALONE * web.node.config.tenant_request_bytes_max)
            for share in (alice, carol)
        ]
        most = 4 * fair_shares.WAITING_REQUEST_BYTES
        monkeypatch.setattr(fair_shares, "TENANT_WAITING_BYTES_MAX", most)
        monkeypatch.setattr(fair_shares, "WAITING_BYTES_MAX", most * 3 // 2)

        def ask(name: str) -> asyncio.Task[Any]:
            web.principal = name
            return asyncio.create_task(web.ask("GET", "/v1/topics"))

        waiting = []
        for name, share, count in (("alice", alice, 4), ("carol", carol, 2)):
            for number in range(count):
                waiting.append(ask(name))
                while share.waiting_count <= number:
                    await asyncio.sleep(0.01)
            status, refused = await ask(name)
            assert (status, refused["code"], refused["retriable"]) == (429, "QuotaExceeded", True)
            assert "share of its tenant" in refused["detail"]
            assert share.waiting_count == count
        waiting.pop().cancel()
        while carol.waiting_count > 1:
            await asyncio.sleep(0.01)
        waiting.append(ask("carol"))
        while carol.waiting_count < 2:
            await asyncio.sleep(0.01)
        for held in holders:
            held.release()
        assert {(await one)[0] for one in waiting} == {200}
        assert shares.waiting_bytes == 0


async def test_a_write_waits_for_its_tenants_share_and_a_read_only_takes_its_turn(monkeypatch):
    monkeypatch.setattr(fair_shares, "STALLED_S", 3_600)
    async with guarded(monkeypatch, tenants=TENANTS) as web:
        shares = web.node.services.fair_shares
        alice, carol = (
            shares.of(ClientSession("HTTP", "127.0.0.1", Principal(name)))
            for name in ("alice", "carol")
        )
        assert alice is not None
        assert carol is not None
        web.principal = "alice"
        assert (await web.ask("POST", "/v1/topics", {"name": TOPIC}))[0] == 201
        assert alice.held_bytes == 0
        beside = carol.take(Holder(), 1)
        held = alice.take(Holder(), web.node.config.tenant_request_bytes_max)
        assert beside is not None
        assert held is not None
        path, body = f"/v1/topics/{TOPIC}/records", {"records": [{"value": "v"}]}
        write, left = (asyncio.create_task(web.ask("POST", path, body)) for _ in range(2))
        while alice.waiting_count < 2:
            await asyncio.sleep(0.01)
        left.cancel()
        while alice.waiting_count > 1:
            await asyncio.sleep(0.01)
        web.principal = "carol"
        assert (await web.ask("GET", "/v1/topics"))[0] == 200
        assert not write.done()
        held.release()
        status, answer = await write
        assert (status, answer["results"][0]["ok"]) == (200, True)
        assert alice.held_bytes == alice.waiting_count == 0
