"""Every HTTP operation, with a client without rights, one with just those of its row, and a super
user. The requests are made from the operations' own schemas."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker
from tests.unit.http.http_rig import Web
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.access import How
from headrace.broker.security.acls import Acl, AclFilter, Entry, Pattern, Permission
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.listener import OPEN
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services import audit, ledger_map
from headrace.broker.services.reassignments import InMotion, Move
from headrace.coordination.shares.membership import ShareHeartbeat
from headrace.errors import PeerVersionDiffers
from headrace.http import operations, overview, topics
from headrace.http.access import ACCESS, EVERYWHERE
from headrace.http.keys import KeyOperations
from headrace.http.records import FOLLOWERS_MAX
from headrace.http.sessions import SessionOperations
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC, GROUP = "secret-topic", "secret-group"
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: GROUP,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
CONFIG = {"offsets_partition_count": 2, "authorizer": "acl", "super_users": "User:root"}
NAMED = [*ACCESS]
QUERIES = {"traceMessage": {"message_id": "x"}, "diagnoseGroup": {"span_ms": "0"}}


def others(services: Any) -> list[operations.Operation]:
    """The operations that the rig leaves out."""
    return [*KeyOperations(services).operations, *SessionOperations(services, OPEN).operations]


class NamedWeb(Web):
    """The interface, asked by a client whose principal a test chooses."""

    principal = "nobody"

    def by_name(self) -> dict[str, Any]:
        return {one.name: one for one in [*self.operations, *others(self.node.services)]}

    async def call(self, name: str, *, topic: str = TOPIC, group: str = GROUP) -> tuple[int, Any]:
        operation = self.by_name()[name]
        path = operation.path.replace("{topic}", topic).replace("{group}", group)
        path = path.replace("{task}", "no-task").replace("{id}", "0" * 16)
        path = path.replace("{tenant}", "acme").replace("{user}", "nobody")
        path = path.replace("{broker}", "0").replace("{reader}", "beta")
        path = path.replace("{partition}", "0").replace("{offset}", "0")
        query = QUERIES.get(name, {})
        path += "?" + "&".join(f"{key}={value}" for key, value in query.items())
        body = None if operation.body is None else _made(operation.body, "", topic)
        if name == "followEvents":  # without an end
            status, data = await self.raw(operation.method, path, b"", leaves=True)
            return status, json.loads(data) if status != 200 else None
        return await self.ask(operation.method, path, body)


def _made(schema: dict[str, Any], name: str, topic: str) -> Any:
    """A value that the schema allows, which names the topic wherever it can."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if "type" not in schema and "oneOf" in schema:
        return _made(schema["oneOf"][0], name, topic)
    if kind == "object":
        properties = schema.get("properties", {})
        one_of = schema.get("anyOf", [{}])[0]
        needed = [*schema.get("required", ()), *one_of.get("required", ())]
        wanted = dict.fromkeys([*needed, *(set(properties) & {"to"})])
        for more in properties:
            if len(wanted) >= schema.get("minProperties", 0):
                break
            wanted[more] = None
        return {one: _made(properties[one], one, topic) for one in wanted}
    if kind == "array":
        count = max(schema.get("minItems", 0), 1)
        return [_made(schema["items"], name, topic)] * count
    if kind == "string" and ":" in schema.get("pattern", ""):  # a place
        return f"{topic}-0:0" if name == "to" else "0:0"
    if kind == "string":
        return (
            topic if name in {"topic", "to", "name"} else "x" * max(schema.get("minLength", 1), 1)
        )
    return {"integer": schema.get("minimum", 1), "number": 1, "boolean": False}[kind]


@asynccontextmanager
async def guarded(monkeypatch: pytest.MonkeyPatch, **more: Any) -> AsyncIterator[NamedWeb]:
    async with broker(BrokerConfig(**{**CONFIG, **more})) as rig:
        await rig.node.topics.create(TOPIC)
        web = NamedWeb(rig)
        web.app.router.routes += operations.routes(
            rig.node.services, others(rig.node.services), is_local=True
        )
        web.history.take()

        def session_of(_request: Any) -> ClientSession:
            return ClientSession("HTTP", "127.0.0.1", Principal(web.principal))

        monkeypatch.setattr(operations, "session_of", session_of)
        yield web


def _rules(name: str, who: str) -> list[Acl]:
    found = [
        Acl(
            Pattern(need.kind, need.prefix + TOPIC if need.prefix else NAMES[need.kind]),
            Entry(f"User:{who}", "*", need.operation, Permission.ALLOW),
        )
        for need in ACCESS[name].needs
    ]
    return list(dict.fromkeys(found))


async def test_each_operation_has_a_row_and_each_row_an_operation(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert set(web.by_name()) == set(ACCESS)
        for name, access in ACCESS.items():
            assert bool(access.needs) != bool(access.public), name
            places = [need.of for need in access.needs if need.how is not How.SHOWN]
            operation = web.by_name()[name]
            for place in filter(None, places):
                where, _, field = place.partition(".")
                known = operation.parameters if where == "path" else operation.body["properties"]
                assert field.partition(".")[0] in known, (name, place)


@pytest.mark.parametrize("name", NAMED)
async def test_a_client_without_rights_is_refused_or_sees_nothing(name, monkeypatch):
    async with guarded(monkeypatch) as web:
        status, answer = await web.call(name)
        access = ACCESS[name]
        if any(need.how is not How.SHOWN for need in access.needs):
            assert status == 403, answer
            assert "explain" in answer["next_step"]
            other = await web.call(name, topic="absent-topic", group="absent-group")
            text = str(other).replace("absent-", "secret-")
            assert text == str((status, answer))
        else:
            # 409: signIn, as this listener has no logins.
            assert status in {200, 201, 404, 409}, answer
            if name != "createKey":  # which repeats the name that it was given
                assert "secret" not in str(answer)
        assert {TOPIC, *web.node.topics.names()} <= {TOPIC, "__consumer_offsets"}
        assert TOPIC in web.node.topics.by_name


@pytest.mark.parametrize("name", NAMED)
async def test_the_rights_of_a_row_suffice(name, monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.access.create(_rules(name, "somebody"))
        for principal in ("somebody", "root"):
            web.principal = principal
            if name == "followTopic":  # its answer does not end
                await web.node.services.topics.delete(TOPIC)
            status, answer = await web.call(name)
            assert status != 403, (principal, answer)
            if TOPIC not in web.node.topics.by_name:
                return


async def test_lists_are_filtered_before_they_are_cut_into_pages(monkeypatch):
    """A page token names the last item of its page."""

    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        for name in ("a", "b", "c", "d"):
            await web.node.topics.create(name)
        rules = [
            Acl(
                Pattern(ResourceType.TOPIC, name),
                Entry("User:nobody", "*", Operation.DESCRIBE, Permission.ALLOW),
            )
            for name in ("a", "c", "d")
        ]
        await web.node.access.create(rules)
        _, first = await web.ask("GET", "/v1/topics?limit=1")
        _, second = await web.ask("GET", f"/v1/topics?page_token={first['next_page_token']}")
        assert [one["name"] for one in first["topics"]] == ["a"]
        assert [one["name"] for one in second["topics"]] == ["c", "d"]


async def test_the_members_of_a_group_are_shown_with_the_topics_that_the_client_may_see(
    monkeypatch,
):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.topics.create("open")
        await web.node.topics.ensure_internal(OFFSETS_TOPIC)
        beat = ShareHeartbeat(GROUP, "m", 0, [TOPIC, "open"], None, "c", "/h")
        await web.node.services.share_members.heartbeat(beat)
        seen = {(ResourceType.GROUP, GROUP), (ResourceType.TOPIC, "open")}
        entry = Entry("User:nobody", "*", Operation.DESCRIBE, Permission.ALLOW)
        await web.node.access.create([Acl(Pattern(*one), entry) for one in sorted(seen)])
        for web.principal, topics in (("nobody", ["open"]), ("root", ["open", TOPIC])):
            status, answer = await web.call("getGroup")
            assert status == 200
            (member,) = answer["members"]
            assert sorted(member["topics"]) == topics
            assert [one["topic"] for one in member["assignments"]] == topics
            assert {*chain(*(one["partitions"] for one in member["assignments"]))} == {0}


async def test_groups_are_described_between_brokers_of_which_one_knows_no_assignments(monkeypatch):
    async with guarded(monkeypatch) as web:
        await web.node.topics.ensure_internal(OFFSETS_TOPIC)
        beat = ShareHeartbeat(GROUP, "m", 0, [TOPIC], None, "c", "/h")
        await web.node.services.share_members.heartbeat(beat)
        groups = web.node.services.all_groups
        (member,) = (await groups.describe(GROUP)).members
        assert [*member.assigned] == [(TOPIC, [0])]
        ask = groups._ask

        async def ask_an_older_one(name: str, group_id: str, *more: object) -> object:
            if more:
                raise PeerVersionDiffers("a broker's request is malformed")
            return await ask(name, group_id)

        monkeypatch.setattr(groups, "_ask", ask_an_older_one)
        (member,) = (await groups.describe(GROUP)).members
        assert (member.client_id, [*member.assigned]) == ("c", [])


async def test_a_streams_group_is_described_by_a_broker_that_knows_no_tasks(monkeypatch):
    async with guarded(monkeypatch) as web:
        groups = web.node.services.all_groups

        async def ask_an_older_one(name: str, *_asked: object) -> object:
            if name == "groups.describe":
                return "streams", "stable", [("m", "c", "/h", None, None)]
            raise PeerVersionDiffers(f"there is no operation {name!r}")

        monkeypatch.setattr(groups, "_ask", ask_an_older_one)
        (member,) = (await groups.describe(GROUP)).members
        assert (member.member_id, [*member.tasks]) == ("m", [])


async def test_lags_are_filtered_before_the_largest_are_shown_and_added_up(monkeypatch):
    monkeypatch.setattr(topics, "LAGS_MAX", 1)
    monkeypatch.setattr(overview, "LAGS_MAX", 1)
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.topics.ensure_internal(OFFSETS_TOPIC)
        web.principal = "root"
        records = {"records": [{"value": "x"}] * 3}
        assert (await web.ask("POST", f"/v1/topics/{TOPIC}/records", records))[0] == 200
        for group, offset in ((GROUP, 0), ("seen", 1)):
            await web.node.services.all_groups.commit(group, TOPIC, 0, offset)
        seen = [
            (ResourceType.GROUP, "seen"),
            (ResourceType.TOPIC, TOPIC),
            (ResourceType.CLUSTER, CLUSTER_NAME),
        ]
        entry = Entry("User:nobody", "*", Operation.DESCRIBE, Permission.ALLOW)
        await web.node.access.create([Acl(Pattern(*one), entry) for one in seen])
        web.history.take()
        for web.principal, lag, group in (("nobody", 2, "seen"), ("root", 5, GROUP)):
            _, answer = await web.ask("GET", "/v1/topics?details=true")
            (one,) = answer["topics"]
            assert (one["lag_records"], [each["group"] for each in one["lags"]]) == (lag, [group])
            _, answer = await web.ask("GET", "/v1/overview")
            assert [each["group"] for each in answer["lags"]] == [group]


async def test_moves_and_lacking_ledgers_are_filtered_before_they_are_cut_and_counted(monkeypatch):
    monkeypatch.setattr(ledger_map, "LACKING_MAX", 1)
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        web.principal, services = "root", web.node.services
        await web.node.topics.create("visible")
        segments = []
        for name in (TOPIC, "visible"):
            records = {"records": [{"value": "x"}]}
            assert (await web.ask("POST", f"/v1/topics/{name}/records", records))[0] == 200
            segments += web.node.topics.get(name).require_log(0).segments
        lacking = {one.ledger: 1 for one in segments}
        monkeypatch.setattr(services.ledgers, "_replication", SimpleNamespace(lacking=lacking))
        moves = [InMotion(Move(name, 0, 1, 2), "asked") for name in (TOPIC, "visible")]

        async def in_motion() -> list[InMotion]:
            return moves

        monkeypatch.setattr(services.reassignments, "in_motion", in_motion)
        seen = [(ResourceType.TOPIC, "visible"), (ResourceType.CLUSTER, CLUSTER_NAME)]
        entry = Entry("User:nobody", "*", Operation.DESCRIBE, Permission.ALLOW)
        await web.node.access.create([Acl(Pattern(*one), entry) for one in seen])
        for web.principal, topic, count in (("nobody", "visible", 1), ("root", TOPIC, 2)):
            for path, name in (("/v1/moves?limit=1", "moves"), ("/v1/ledgers/lacking", "ledgers")):
                _, answer = await web.ask("GET", path)
                assert ([one["topic"] for one in answer[name]], answer["count"]) == ([topic], count)


async def test_addresses_of_bookies_require_the_right_to_describe_the_cluster(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        ledgers = web.node.services.ledgers

        async def place(*_asked: Any) -> dict[str, Any]:
            return {"ledger": 1, "bookies": ["10.0.0.7:3181"]}

        async def machines(asked: Any) -> dict[Any, list[str]]:
            return {one: ["10.0.0.7:3181"] for one in asked}

        monkeypatch.setattr(ledgers, "place", place)
        monkeypatch.setattr(ledgers, "_machines", machines)
        rules = [
            Acl(
                Pattern(ResourceType.TOPIC, TOPIC),
                Entry("User:nobody", "*", right, Permission.ALLOW),
            )
            for right in (Operation.READ, Operation.DESCRIBE)
        ]
        await web.node.access.create(rules)
        web.principal = "root"
        sent = {"records": [{"value": "x", "headers": [["headrace-message-id", "x"]]}]}
        assert (await web.ask("POST", f"/v1/topics/{TOPIC}/records", sent))[0] == 200
        for web.principal, is_shown in (("nobody", False), ("root", True)):
            asked = {"topic": TOPIC, "partition": 0, "offset": 0}
            _, task = await web.ask("POST", "/v1/traces", asked)
            while task["state"] == "running":
                await asyncio.sleep(0.01)
                _, task = await web.ask("GET", f"/v1/traces/{task['id']}")
            _, followed = await web.raw("GET", f"/v1/traces/{task['id']}/events", b"")
            found = [
                task["results"],
                followed.decode(),
                await web.ask("GET", f"/v1/topics/{TOPIC}/ledgers?partition=0"),
                await web.ask("GET", f"/v1/topics/{TOPIC}/trace?partition=0&offset=0"),
            ]
            assert ["ledger" in str(one) for one in found] == [True] * 4
            assert ["10.0.0.7" in str(one) for one in found] == [is_shown] * 4


async def test_taking_back_names_only_groups_that_the_client_may_see(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.topics.create("letters")
        web.principal = "root"
        change = {"set": {"share.auto.offset.reset": "earliest"}}
        queues = f"/v1/queues/{TOPIC}"
        for group in (GROUP, "seen"):
            assert (await web.ask("PATCH", f"/v1/groups/{group}/config", change))[0] == 200
            assert (await web.ask("POST", f"{queues}/{group}/receive", {"max": 1}))[0] == 200
        for topic in ("letters", TOPIC):
            records = [
                {"value": "x", "headers": [["headrace-redriven-from", f"letters-0:{n}"]]}
                for n in range(2)
            ]
            path = f"/v1/topics/{topic}/records"
            assert (await web.ask("POST", path, {"records": records}))[0] == 200
        assert (await web.ask("POST", f"{queues}/{GROUP}/receive", {"max": 1}))[0] == 200
        seen = [
            (ResourceType.TOPIC, name, right)
            for name in ("letters", TOPIC)
            for right in (Operation.READ, Operation.WRITE)
        ]
        seen.append((ResourceType.GROUP, "seen", Operation.DESCRIBE))
        await web.node.access.create(
            [
                Acl(Pattern(kind, name), Entry("User:nobody", "*", right, Permission.ALLOW))
                for kind, name, right in seen
            ]
        )
        sent = [{"letter": f"0:{n}", "to": f"{TOPIC}-0:{n}"} for n in range(2)]
        path = "/v1/dead-letters/letters/take-back?dry_run=true"

        async def answered(who: str) -> list[Any]:
            web.principal = who
            status, answer = await web.ask("POST", path, {"sent": sent})
            assert status == 200
            return answer["results"]

        refused, taken = await answered("nobody")
        assert (taken["taken_back"], taken["groups"]) == (True, ["seen"])
        hidden = "group (which you may not DESCRIBE)"
        assert refused["reason"] == f"it was delivered to {hidden} (acquired)"
        refused, taken = await answered("root")
        assert taken["groups"] == [GROUP, "seen"]
        assert refused["reason"] == f"it was delivered to group {GROUP} (acquired)"
        await web.node.services.all_groups.commit("secret-readers", TOPIC, 0, 0)
        refused, _ = await answered("nobody")
        assert refused["reason"].startswith(f"consumer {hidden} will read it: ")
        refused, _ = await answered("root")
        assert refused["reason"].startswith("consumer group secret-readers will read it: ")


async def test_a_task_is_hidden_from_other_principals(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.access.create(_rules("startSearch", "nobody"))
        status, task = await web.ask("POST", "/v1/searches", {"topic": TOPIC})
        assert status == 202
        path = f"/v1/searches/{task['id']}"
        assert (await web.ask("GET", path))[0] == 200
        web.principal = "other"
        status, refusal = await web.ask("GET", path)
        assert status == 404
        absent = await web.ask("GET", "/v1/searches/" + "0" * 32)
        assert str(absent[1]).replace("0" * 32, task["id"]) == str(refusal)
        assert (await web.ask("DELETE", path))[0] == 404
        assert (await web.ask("GET", "/v1/searches"))[1] == {"searches": []}
        web.principal = "root"
        assert (await web.ask("DELETE", path))[0] == 200


async def test_a_follower_of_a_task_is_asked_again_whether_it_may(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        rule = Acl(
            Pattern(ResourceType.CLUSTER, CLUSTER_NAME),
            Entry("User:other", "*", Operation.DESCRIBE, Permission.ALLOW),
        )
        await web.node.access.create([rule])

        async def work(_task: Any) -> None:
            await asyncio.Event().wait()

        tasks = web.node.services.tasks
        task = tasks.start("search", {"topic": TOPIC}, work)
        task.owner, web.principal = "User:nobody", "other"
        following = asyncio.create_task(web.raw("GET", f"/v1/searches/{task.id}/events", b""))
        await asyncio.sleep(0.1)
        assert not following.done()
        await web.node.access.delete(AclFilter(principal="User:other"))
        _, data = await asyncio.wait_for(following, 10)
        assert b"event: progress" in data
        assert data.rpartition(b"event: ")[2].startswith(b"problem")
        await tasks.cancel("search", task.id)


async def test_a_search_says_nothing_of_dead_letter_topics_that_the_client_may_not_read(
    monkeypatch,
):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.topics.create("hidden-letters")
        web.principal = "root"
        change = {"set": {"errors.deadletterqueue.topic.name": "hidden-letters"}}
        assert (await web.ask("PATCH", "/v1/groups/workers/config", change))[0] == 200
        origin = ["__dlq.errors.topic", TOPIC]
        sent = {"records": [{"value": "x", "headers": [origin]}] * 5}
        assert (await web.ask("POST", "/v1/topics/hidden-letters/records", sent))[0] == 200
        entry = Entry("User:nobody", "*", Operation.READ, Permission.ALLOW)
        await web.node.access.create([Acl(Pattern(ResourceType.TOPIC, TOPIC), entry)])
        path = f"/v1/topics/{TOPIC}/messages?limit=2"
        for web.principal, found, records in (("root", 2, 5), ("nobody", 0, 0)):
            _, answer = await web.ask("GET", path)
            assert len(answer["messages"]) == found
            assert answer["searched"]["records"] == records
            assert answer["is_complete"] == (not found)
        assert "hidden" not in str(answer)
        _, task = await web.ask("POST", "/v1/searches", {"topic": TOPIC})
        while task["state"] == "running":
            await asyncio.sleep(0.01)
            _, task = await web.ask("GET", f"/v1/searches/{task['id']}")
        assert (task["progress"]["records"], task["results"]) == (0, [])


async def test_a_stream_that_is_refused_after_all_gives_its_place_back(monkeypatch):
    """Its client's right, or login, ends while the broker prepares it."""

    async with guarded(monkeypatch) as web:
        access, reads = web.node.access, web.node.services.reads
        assert access is not None
        follow = reads.follow
        rules = _rules("followTopic", "nobody")

        async def withdrawn(*arguments: Any) -> Any:
            await access.delete(AclFilter(principal="User:nobody"))
            return await follow(*arguments)

        monkeypatch.setattr(reads, "follow", withdrawn)
        for _ in range(FOLLOWERS_MAX):
            await access.create(rules)
            assert (await web.call("followTopic"))[0] == 403
        monkeypatch.setattr(reads, "follow", follow)
        await access.create(rules)
        status, _ = await web.raw("GET", f"/v1/topics/{TOPIC}/tail", b"", leaves=True)
        assert status == 200


async def test_a_redrive_to_wherever_records_say_needs_the_right_to_all_topics(monkeypatch):
    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.access.create(_rules("startRedrive", "nobody"))
        body = {"topic": TOPIC, "dry_run": True}
        status, answer = await web.ask("POST", "/v1/redrives", body)
        assert status == 403
        assert EVERYWHERE in answer["detail"]


@pytest.mark.parametrize("filters", [{}, {"to": TOPIC}, {"to": "other", "reason": "x"}])
async def test_a_redrive_needs_each_right_that_its_command_uses(filters, monkeypatch):
    """Its command may have other rights, where it cannot log in as the client."""
    needed = [
        (ResourceType.TOPIC, TOPIC, Operation.READ),
        (ResourceType.GROUP, f"headrace-redrive.{TOPIC}", Operation.READ),
        (ResourceType.TRANSACTIONAL_ID, f"headrace-redrive.{TOPIC}", Operation.WRITE),
        (ResourceType.TOPIC, filters.get("to", EVERYWHERE), Operation.WRITE),
    ]
    if "reason" in filters:
        needed.append((ResourceType.TOPIC, TOPIC, Operation.WRITE))

    def rules(permission: Permission, *rights: Any) -> list[Acl]:
        return [
            Acl(Pattern(kind, name), Entry("User:nobody", "*", operation, permission))
            for kind, name, operation in rights
        ]

    async with guarded(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.topics.create("other")
        body = {"topic": TOPIC, "dry_run": True, **filters}
        for right in needed:
            status, answer = await web.ask("POST", "/v1/redrives", body)
            assert status == 403, (right, answer)
            await web.node.access.create(rules(Permission.ALLOW, right))
        denied = rules(Permission.DENY, (ResourceType.TOPIC, "other", Operation.WRITE))
        if not filters:
            await web.node.access.create(denied)
            status, answer = await web.ask("POST", "/v1/redrives", body)
            assert (status, "other" in str(answer)) == (403, False), answer
            await web.node.access.delete(AclFilter(permission=Permission.DENY))
        status, answer = await web.ask("POST", "/v1/redrives", body)
        assert status == 202, answer
        await web.ask("DELETE", f"/v1/redrives/{answer['id']}")


@pytest.mark.parametrize("name", ["readRecords", "receive"])
async def test_a_right_that_is_withdrawn_during_a_wait_counts(name, monkeypatch):
    async with guarded(monkeypatch) as web:
        access = web.node.access
        assert access is not None
        web.principal = "somebody"
        await access.create(_rules(name, "somebody"))
        if name == "readRecords":
            waiting = web.ask("GET", f"/v1/topics/{TOPIC}/records?offset=0&wait_ms=20000")
        else:
            body = {"wait_ms": 20_000}
            waiting = web.ask("POST", f"/v1/queues/{TOPIC}/{GROUP}/receive", body)
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0.3)
        assert not task.done()
        await access.delete(AclFilter(principal="User:somebody"))
        web.principal = "root"
        sent = {"records": [{"value": "secret text"}]}
        status, _ = await web.ask("POST", f"/v1/topics/{TOPIC}/records", sent)
        assert status == 200
        status, answer = await asyncio.wait_for(task, 30)
        assert status == 403, answer
        assert "secret text" not in str(answer)


def test_denials_and_changes_are_audited_without_values(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")

    async def scenario() -> None:
        async with guarded(monkeypatch) as web:
            await web.ask("DELETE", f"/v1/topics/{TOPIC}")
            web.principal = "root"
            change = {"set": {"retention.ms": "123456"}}
            await web.ask("PATCH", f"/v1/topics/{TOPIC}/config", change)
            made = {"name": "acme", "principals": ["User:alice"]}
            await web.ask("POST", "/v1/tenants", made)
            await web.ask("PATCH", "/v1/tenants/acme", {"remove": ["User:alice"]})
            rule = {"principal": "User:x", "permission": "deny", "operation": "READ"}
            await web.ask("POST", "/v1/acls", rule | {"resource": "topic", "name": "acme/orders"})

    asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records if record.name == "headrace.audit"]
    assert '"event":"denied","principal":"User:nobody"' in lines[0]
    assert '"resource":"TOPIC:secret-topic"' in lines[0]
    assert '"event":"changed","principal":"User:root"' in lines[1]
    assert '"request":"createTenant","resources":["acme","User:alice"]' in lines[2]
    assert '"request":"changeTenant","resources":["acme","User:alice"]' in lines[3]
    assert '"request":"createAcl"' in lines[4]
    assert json.loads(lines[4])["resources"] == ["acme/orders", "User:x"]
    assert "123456" not in "".join(lines)


NOTED = {
    *("createTopic", "growTopic", "deleteTopic", "changeTopicConfig", "changeGroupConfig"),
    *("deleteGroup", "moveGroup", "parkKeys", "unparkKeys", "startRedrive"),
    *("cancelDelayed", "deliverDelayed", "settleHalfMessages", "cancelRedrive"),
    *("createAcl", "deleteAcl", "createTenant", "changeTenant", "deleteTenant"),
    *("changeQuota", "deleteQuota", "changeBrokerConfig", "changeClusterConfig"),
    *("createUser", "setPassword", "deleteUser"),
    *("shareTopic", "unshareTopic", "acceptTopic", "leaveTopic"),
}
"""Those of keys, sessions and dead letters are noted by their handlers."""


def test_these_operations_administer_something():
    assert {name for name, access in ACCESS.items() if access.noted} == NOTED


@pytest.mark.parametrize("name", sorted(NOTED))
async def test_what_administers_is_in_the_audit_log(name, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.call(name)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "headrace.audit"]
    found = json.loads(line)
    assert (found["event"], found["principal"], found["request"]) == ("changed", "User:root", name)
    assert found["resources"]
    assert len({*found["resources"]}) == len(found["resources"])
    if "{group}" in web.by_name()[name].path:
        assert GROUP in found["resources"]


async def test_what_programs_do_all_the_time_is_one_line_in_the_audit_log(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    monkeypatch.setattr(audit, "FREQUENT_REPEATS_S", 0.5)
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        # At once: on a slow machine, one after the other takes longer than any short period.
        await asyncio.gather(*(web.call("settleHalfMessages") for _ in range(3)))
        found = lambda: [one for one in caplog.records if one.name == "headrace.audit"]  # noqa: E731
        await until(lambda: '"repeated":' in found()[-1].getMessage())


def test_the_documents_say_what_each_operation_needs():
    text = (Path(__file__).parents[3] / "docs" / "SECURITY.md").read_text()
    missing = [name for name in ACCESS if f"`{name}`" not in text]
    of_tasks = {
        f"{verb}{kind}" for kind in ("Trace", "Redrive") for verb in ("get", "follow", "cancel")
    }
    assert {*missing} <= of_tasks | {"listTraceTasks", "listRedriveTasks"}
