"""Topics that tenants share, over HTTP: by the people of both tenants, and by operators."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.http.test_authorization import NAMED, guarded
from tests.unit.http.test_tenant_names import CONFIG, GROUP, READS, TENANTS, TOPIC, filled
from tests.waiting import until

from headrace.broker.security import topic_sharing
from headrace.broker.security.acls import Acl, Entry, Pattern, Permission
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.services.topic_shares import TopicShares
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.coordination.shares import share_machine
from headrace.coordination.shares.commands import DescribeCommand
from headrace.errors import MetadataUnavailable
from headrace.metadata.followed_facts import CLOSED_TENANTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.http.test_authorization import NamedWeb

SOURCE, NAME = "canary-orders", "partner-orders"
SHARED, ACCEPTED = "/v1/shared-topics", "/v1/accepted-topics"


@asynccontextmanager
async def administered(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NamedWeb]:
    """Alice administers acme, which has a topic, and carol beta."""
    async with guarded(monkeypatch, tenants=TENANTS) as web:
        assert web.node.access is not None
        rules = [
            Acl(
                Pattern(ResourceType.CLUSTER, f"«{tenant}»{CLUSTER_NAME}"),
                Entry(f"User:{who}", "*", Operation.ALL, Permission.ALLOW),
            )
            for tenant, who in (("acme", "alice"), ("beta", "carol"))
        ]
        await web.node.access.create(rules)
        await done(web, "alice", "POST", "/v1/topics", {"name": SOURCE})
        records = {"records": [{"value": "of acme"}]}
        await done(web, "alice", "POST", f"/v1/topics/{SOURCE}/records", records)
        yield web


async def done(web: NamedWeb, who: str, method: str, path: str, body: Any = None) -> Any:
    web.principal = who
    status, answer = await web.ask(method, path, body)
    assert status < 300, answer
    return answer


async def refused(web: NamedWeb, who: str, method: str, path: str, body: Any = None) -> Any:
    web.principal = who
    status, answer = await web.ask(method, path, body)
    assert status >= 400, answer
    return status, answer


async def share(web: NamedWeb) -> None:
    await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "beta"})
    await done(web, "carol", "POST", ACCEPTED, {"topic": NAME, "source": f"acme/{SOURCE}"})


async def test_the_people_of_two_tenants_share_a_topic(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        read = await done(web, "carol", "GET", f"/v1/topics/{NAME}/records")
        assert [one["value"] for one in read["records"]] == ["of acme"]
        described = await done(web, "carol", "GET", f"/v1/topics/{NAME}")
        listed = await done(web, "carol", "GET", "/v1/topics?details=true")
        assert [one["name"] for one in listed["topics"]] == [NAME]
        settings = await done(web, "carol", "GET", f"/v1/topics/{NAME}/config")
        assert "canary" not in json.dumps([read, described, listed, settings])
        assert (await done(web, "alice", "GET", SHARED))["topics"] == [
            {"topic": SOURCE, "reader": "beta", "exists": True}
        ]
        source = f"acme/{SOURCE}"
        assert (await done(web, "carol", "GET", ACCEPTED))["topics"] == [
            {"topic": NAME, "source": source, "is_shared": True}
        ]
        for who, path in (("alice", ACCEPTED), ("carol", SHARED)):
            assert (await done(web, who, "GET", path))["topics"] == []
        root = await done(web, "root", "GET", ACCEPTED)
        assert root["topics"] == [{"topic": f"beta/{NAME}", "source": source, "is_shared": True}]
        assert (await done(web, "root", "GET", SHARED))["topics"][0]["topic"] == source
        alice = await done(web, "alice", "GET", "/v1/topics")
        assert [one["name"] for one in alice["topics"]] == [SOURCE]


@pytest.mark.parametrize("who", ["carol", "root"])
async def test_nobody_changes_it_by_the_readers_name(who, monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        name = NAME if who == "carol" else f"«beta»{NAME}"
        topic = f"/v1/topics/{name}"
        for method, path, body in (
            ("POST", f"{topic}/records", {"records": [{"value": "mine"}]}),
            ("PATCH", topic, {"partitions": 2}),
            ("PATCH", f"{topic}/config", {"set": {"retention.ms": "1"}}),
            ("DELETE", topic, None),
        ):
            status, _ = await refused(web, who, method, path, body)
            assert status == 403, (path, status)
        own = NAME if who == "carol" else f"beta/{NAME}"
        status, _ = await refused(web, who, "POST", "/v1/topics", {"name": own})
        assert status == 409


async def test_explanations_say_that_nobody_changes_it(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        for operation, is_allowed in (("READ", True), ("WRITE", False), ("ALTER", False)):
            for who in ("carol", "root"):
                asked = {"principal": f"User:{who}", "resource": "topic", "operation": operation}
                body = asked | {"name": f"beta/{NAME}"}
                found = await done(web, "root", "POST", "/v1/acl-explanations", body)
                assert found["allowed"] == is_allowed
                assert found["code"] == "shared_topic" or is_allowed


async def test_rules_about_the_readers_name_allow_what_a_tenant_with_rules_may(monkeypatch):
    async with administered(monkeypatch) as web:
        assert web.node.access is not None
        await share(web)
        path = f"/v1/topics/{NAME}/records"
        await done(web, "root", "PATCH", "/v1/tenants/beta", {"access": "rules"})
        assert (await refused(web, "carol", "GET", path))[0] == 403
        for operation in ("READ", "WRITE"):
            rule = {"principal": "User:carol", "operation": operation, "permission": "allow"}
            body = rule | {"resource": "topic", "name": f"beta/{NAME}"}
            await done(web, "root", "POST", "/v1/acls", body)
        await done(web, "carol", "GET", path)
        records = {"records": [{"value": "mine"}]}
        assert (await refused(web, "carol", "POST", path, records))[0] == 403


async def test_a_tenant_that_is_created_again_has_none_of_what_it_shared(monkeypatch):
    async with administered(monkeypatch) as web:
        assert web.node.access is not None
        await done(web, "root", "POST", "/v1/tenants", {"name": "gamma"})
        await done(web, "root", "POST", "/v1/topics", {"name": "gamma/t"})
        body = {"topic": "gamma/t", "reader": "beta"}
        await done(web, "root", "POST", SHARED, body)
        await done(web, "root", "DELETE", "/v1/tenants/gamma?force=true")
        await done(web, "root", "POST", "/v1/tenants", {"name": "gamma"})
        assert (await done(web, "root", "GET", SHARED))["topics"] == []
        accepted = {"topic": "beta/t", "source": "gamma/t"}
        assert (await refused(web, "root", "POST", ACCEPTED, accepted))[0] == 404


async def test_what_a_tenant_shares_and_reads_is_bounded(monkeypatch):
    monkeypatch.setattr(topic_sharing, "SHARES_MAX", 2)
    async with administered(monkeypatch) as web:
        for number, status in enumerate((200, 200, 403)):
            await done(web, "alice", "POST", "/v1/topics", {"name": f"t{number}"})
            web.principal = "alice"
            body = {"topic": f"t{number}", "reader": "beta"}
            assert (await web.ask("POST", SHARED, body))[0] == status
        await done(web, "alice", "DELETE", f"{SHARED}/t0/readers/beta")
        await done(web, "alice", "POST", SHARED, {"topic": "t2", "reader": "beta"})


async def test_each_half_can_be_ended(monkeypatch):
    async with administered(monkeypatch) as web:
        for who, path in (
            ("alice", f"{SHARED}/{SOURCE}/readers/beta"),
            ("carol", f"{ACCEPTED}/{NAME}"),
        ):
            await share(web)
            assert (await done(web, who, "DELETE", f"{path}?dry_run=true"))["existed"]
            await done(web, "carol", "GET", f"/v1/topics/{NAME}")
            assert (await done(web, who, "DELETE", path))["existed"]
            assert not (await done(web, who, "DELETE", path))["existed"]
            status, _ = await refused(web, "carol", "GET", f"/v1/topics/{NAME}/records")
            assert status == 404
            status, _ = await refused(web, "carol", "GET", f"/v1/topics/{NAME}/tail")
            assert status == 404


async def test_a_stream_ends_once_the_topic_is_shared_no_longer(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        web.principal = "carol"
        following = asyncio.ensure_future(web.raw("GET", f"/v1/topics/{NAME}/tail", b""))
        await asyncio.sleep(0.05)
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        records = {"records": [{"value": "of later"}]}
        await done(web, "alice", "POST", f"/v1/topics/{SOURCE}/records", records)
        status, data = await following
        assert status == 200
        assert b"event: problem" in data
        assert b"canary" not in data
        assert b"of later" not in data


async def test_what_is_not_shared_is_refused_alike(monkeypatch):
    async with administered(monkeypatch) as web:
        await done(web, "alice", "POST", "/v1/topics", {"name": "canary-other"})
        answers = set()
        for source in ("acme/canary-other", "acme/absent", "nobody/x", "gamma/canary-other"):
            body = {"topic": NAME, "source": source}
            answer = str(await refused(web, "carol", "POST", ACCEPTED, body))
            answers.add(answer.replace(source, ""))
        assert len(answers) == 1
        answer = await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "nobody"})
        assert answer == {"topic": SOURCE, "reader": "nobody", "dry_run": False}


async def test_what_was_shared_with_an_earlier_tenant_is_not_shared_with_a_new_one(monkeypatch):
    async with administered(monkeypatch) as web:
        created = {"name": "gamma", "principals": ["User:gus"]}
        accepted = {"topic": f"gamma/{NAME}", "source": f"acme/{SOURCE}"}
        for reader in ("gamma", "beta"):
            await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": reader})
        await done(web, "root", "POST", "/v1/tenants", created)
        await done(web, "root", "DELETE", "/v1/tenants/gamma?force=true")
        await done(web, "root", "POST", "/v1/tenants", created)
        assert (await refused(web, "root", "POST", ACCEPTED, accepted))[0] == 404
        given = (await done(web, "alice", "GET", SHARED))["topics"]
        assert "beta" in [one["reader"] for one in given]


async def test_a_deletion_that_is_refused_ends_no_share(monkeypatch):
    """As of a tenant that another broker has just given a principal."""
    async with administered(monkeypatch) as web:
        assert web.node.access is not None
        tenants, delete = web.node.access.tenants, web.node.access.tenants.delete

        async def delete_late(tenant: str, *, is_forced: bool = False) -> None:
            await tenants.change(tenant, ["User:gus"])
            await delete(tenant, is_forced=is_forced)

        monkeypatch.setattr(tenants, "delete", delete_late)
        await done(web, "root", "POST", "/v1/tenants", {"name": "gamma"})
        await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "gamma"})
        accepted = {"topic": f"gamma/{NAME}", "source": f"acme/{SOURCE}"}
        await done(web, "root", "POST", ACCEPTED, accepted)
        await refused(web, "root", "DELETE", "/v1/tenants/gamma")
        assert (await done(web, "root", "GET", ACCEPTED))["topics"][0]["is_shared"]


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_a_new_tenant_reads_nothing_of_one_whose_deletion_failed(is_repeated, monkeypatch):
    """Once it was stored. A repetition ends what is shared with it, too."""
    async with administered(monkeypatch) as web:
        assert web.node.access is not None
        sharing = web.node.access.sharing
        created = {"name": "gamma", "principals": ["User:gus"]}
        accepted = {"topic": f"gamma/{NAME}", "source": f"acme/{SOURCE}"}

        async def fail(_tenant: str) -> None:
            raise MetadataUnavailable("the store is away")

        await done(web, "root", "POST", "/v1/tenants", created)
        await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "gamma"})
        await done(web, "root", "POST", ACCEPTED, accepted)
        with monkeypatch.context() as patched:
            patched.setattr(sharing, "forget", fail)
            status, _ = await refused(web, "root", "DELETE", "/v1/tenants/gamma?force=true")
            assert status == 503
        if is_repeated:
            status, _ = await refused(web, "root", "DELETE", "/v1/tenants/gamma?force=true")
            assert status == 404
            assert (await done(web, "alice", "GET", SHARED))["topics"] == []
        await done(web, "root", "POST", "/v1/tenants", created)
        assert (await done(web, "root", "GET", ACCEPTED))["topics"] == []
        await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "gamma"})
        await done(web, "root", "POST", ACCEPTED, accepted)
        await done(web, "root", "POST", "/v1/tenants", created)  # a repetition ends nothing
        assert (await done(web, "root", "GET", ACCEPTED))["topics"][0]["is_shared"]


async def test_only_who_administers_a_tenant_shares_and_accepts(monkeypatch):
    async with administered(monkeypatch) as web:
        assert web.node.access is not None
        await web.node.access.tenants.create("gamma", ["User:gus"])
        for who in ("gus", "somebody"):
            for path, body in (
                (SHARED, {"topic": SOURCE, "reader": "beta"}),
                (ACCEPTED, {"topic": NAME, "source": f"acme/{SOURCE}"}),
            ):
                assert (await refused(web, who, "POST", path, body))[0] == 403
                assert (await refused(web, who, "GET", path))[0] == 403


async def test_operators_do_both_halves(monkeypatch):
    async with administered(monkeypatch) as web:
        source = f"acme/{SOURCE}"
        body = {"topic": f"beta/{NAME}", "source": source}
        assert (await refused(web, "root", "POST", ACCEPTED, body))[0] == 404
        await done(web, "root", "POST", SHARED, {"topic": source, "reader": "beta"})
        await done(web, "root", "POST", ACCEPTED, body)
        await done(web, "carol", "GET", f"/v1/topics/{NAME}/records")
        # A topic of the default tenant needs no other half, and only operators have it accepted.
        body = {"topic": f"beta/{NAME}-2", "source": "secret-topic"}
        assert (await refused(web, "carol", "POST", ACCEPTED, body | {"topic": "x"}))[0] == 404
        await done(web, "root", "POST", ACCEPTED, body)
        await done(web, "carol", "GET", f"/v1/topics/{NAME}-2/records")
        body = {"topic": "orders", "source": source}
        assert (await refused(web, "root", "POST", ACCEPTED, body))[0] == 400
        body = {"topic": "secret-topic", "reader": "beta"}
        assert (await refused(web, "root", "POST", SHARED, body))[0] == 400


async def test_errors_name_the_topic_as_its_reader_does(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        _, answer = await refused(web, "carol", "GET", f"/v1/topics/{NAME}/records?offset=99")
        assert NAME in json.dumps(answer)
        assert "canary" not in json.dumps(answer)


@pytest.mark.parametrize("name", ["secret-topic-2", "my-secret-topic", "x", "missing"])
async def test_errors_name_a_topic_of_no_tenant_as_its_reader_does(name, monkeypatch):
    """And change no other name that it is a part of, or that is equal to it."""
    async with administered(monkeypatch) as web:
        body = {"topic": f"beta/{name}", "source": "secret-topic"}
        await done(web, "root", "POST", ACCEPTED, body)
        _, answer = await refused(web, "carol", "GET", f"/v1/topics/{name}/records?offset=99")
        assert f"{name}-0" in answer["detail"].split()
        for other in ("secret-topic", "secret-topic.x", "a-secret-topic"):
            _, answer = await refused(web, "carol", "GET", f"/v1/topics/{other}/records")
            assert f"'{other}'" in answer["detail"], answer


async def test_nothing_is_shared_while_a_broker_would_not_know_it(monkeypatch):
    async with administered(monkeypatch) as web:
        cluster = web.node.services.cluster
        (own,) = cluster.brokers()
        others = [replace(own, id=12), replace(own, id=11, facts_version=CLOSED_TENANTS)]
        monkeypatch.setattr(type(cluster), "brokers", lambda _: [own, *others])
        body = {"topic": SOURCE, "reader": "beta"}
        status, answer = await refused(web, "alice", "POST", SHARED, body)
        assert status == 403
        assert answer["detail"].endswith("which these have not: 11")
        await done(web, "root", "PATCH", "/v1/tenants/beta", {"access": "rules"})
        others.append(replace(own, id=10, facts_version=None))
        rules = {"access": "rules"}
        status, answer = await refused(web, "root", "PATCH", "/v1/tenants/acme", rules)
        assert status == 403
        assert answer["detail"].endswith("which these have not: 10")


async def lines_of(web: NamedWeb, who: str, count: int) -> list[tuple[str, list[str]]]:
    """(request, resources) of the first lines about shared topics in a tenant's audit log."""
    while True:
        web.principal = who
        status, read = await web.ask("GET", "/v1/topics/audit/records")
        lines = [json.loads(one["value"]) for one in read["records"]] if status == 200 else []
        found = [(one["request"], one["resources"]) for one in lines if "Topic" in one["request"]]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)


async def test_the_operators_audit_log_names_both(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    async with administered(monkeypatch) as web:
        await share(web)
    lines = [json.loads(one.getMessage()) for one in caplog.records if "Topic" in one.getMessage()]
    assert [
        one["resources"] for one in lines if one["request"] in {"shareTopic", "acceptTopic"}
    ] == [
        [f"acme/{SOURCE}", "beta"],
        [f"beta/{NAME}", f"acme/{SOURCE}"],
    ]


async def test_the_tenants_audit_logs_name_their_own_half(monkeypatch):
    async with administered(monkeypatch) as web:
        for tenant in ("acme", "beta"):
            await done(web, "root", "PATCH", f"/v1/tenants/{tenant}", {"audit_topic": "audit"})
        await share(web)
        await done(web, "root", "DELETE", f"{ACCEPTED}/«beta»{NAME}")
        body = {"topic": f"beta/{NAME}", "source": f"«acme»{SOURCE}"}
        await done(web, "root", "POST", ACCEPTED, body)
        carol, alice = await lines_of(web, "carol", 3), await lines_of(web, "alice", 1)
        assert alice == [("shareTopic", [SOURCE, "beta"])]
        assert carol[0] == ("acceptTopic", [NAME, f"acme/{SOURCE}"])
        assert "canary" not in str(carol[1:])


async def test_an_audit_topic_is_not_created_in_place_of_a_shared_one(monkeypatch, caplog):
    async with administered(monkeypatch) as web:
        await share(web)
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        assert web.node.access is not None
        await web.node.access.tenants.set_audit_topic("beta", NAME)  # as if that had been first
        await done(web, "carol", "POST", "/v1/topics", {"name": "mine"})
        await until(lambda: "cannot be written" in caplog.text)
        assert f"«beta»{NAME}" not in web.node.topics.by_name


QUEUE = f"/v1/queues/{NAME}/workers"
LETTERS = "letters"
WITH_LETTERS = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": LETTERS,
}
"""Settings of a group from the start of a topic, with dead letters."""


async def received(web: NamedWeb, who: str, path: str = QUEUE, **asked: Any) -> list[Any]:
    answer = await done(web, who, "POST", f"{path}/receive", {"max": 10} | asked)
    return list(answer["messages"])


async def test_groups_of_both_tenants_receive_every_message(monkeypatch):
    """Under the same name, and neither sees the other's."""
    async with administered(monkeypatch) as web:
        await share(web)
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        for who in ("alice", "carol"):
            await done(web, who, "PATCH", "/v1/groups/workers/config", config)
        for who, path in (("alice", f"/v1/queues/{SOURCE}/workers"), ("carol", QUEUE)):
            (message,) = await received(web, who, path)
            assert message["value"] == "of acme"
            settled = {"ack": [message["receipt"]]}
            await done(web, who, "POST", f"{path}/settle", settled)
            shown = await done(web, who, "GET", path)
            assert [one["lag"] for one in shown["partitions"]] == [0]
            assert await received(web, who, path) == []
        for who, name in (("alice", SOURCE), ("carol", NAME)):
            listed = await done(web, who, "GET", "/v1/topics?details=true")
            assert [one["group"] for one in listed["topics"][0]["lags"]] == ["workers"]
            lag = await done(web, who, "GET", "/v1/groups/workers/offsets")
            assert [one["topic"] for one in lag["offsets"]] == [name]


@pytest.mark.parametrize("is_ended_by", ["owner", "reader"])
async def test_a_group_deleted_while_the_topic_is_not_shared_begins_anew(is_ended_by, monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", config)
        (message,) = await received(web, "carol")
        await done(web, "carol", "POST", f"{QUEUE}/settle", {"ack": [message["receipt"]]})
        if is_ended_by == "owner":
            await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        else:
            await done(web, "carol", "DELETE", f"{ACCEPTED}/{NAME}")
        await done(web, "carol", "DELETE", "/v1/groups/workers")
        home = web.node.topics.get(f"«acme»{SOURCE}")
        assert not (await web.node.shares.ask(home, 0, DescribeCommand())).groups
        await share(web)
        (message,) = await received(web, "carol")
        assert message["value"] == "of acme"


async def test_a_group_goes_with_the_topic_that_it_consumed(monkeypatch):
    """With its owner's, whether its reader still has it or not."""
    async with administered(monkeypatch) as web:
        await share(web)
        await received(web, "carol")
        await done(web, "carol", "DELETE", f"{ACCEPTED}/{NAME}")
        groups = web.node.group_configs
        assert groups.share_groups() == ["«beta»workers"]
        assert (await done(web, "carol", "GET", "/v1/groups/workers/offsets"))["offsets"] == []
        await done(web, "alice", "DELETE", f"/v1/topics/{SOURCE}")
        await until(lambda: not groups.share_groups())


async def test_groups_of_a_reader_leave_room_for_others(monkeypatch):
    monkeypatch.setattr(share_machine, "READER_GROUPS_MAX", 2)
    async with administered(monkeypatch) as web:
        await share(web)
        for group in ("a", "b"):
            await received(web, "carol", f"/v1/queues/{NAME}/{group}")
        path = f"/v1/queues/{NAME}/c/receive"
        _, answer = await refused(web, "carol", "POST", path, {"max": 1})
        assert answer["code"] == "GroupFull"
        await received(web, "carol", f"/v1/queues/{NAME}/a")
        for group in ("a", "b", "c"):
            await received(web, "alice", f"/v1/queues/{SOURCE}/{group}")


@pytest.mark.parametrize("has_left", [False, True])
async def test_the_owner_is_shown_no_group_of_a_reader(has_left, monkeypatch):
    """Neither in the journal that its partition has for both, nor in the trace of a message; also
    once the last reader has left."""
    async with administered(monkeypatch) as web:
        await share(web)
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", config)
        await done(web, "alice", "PATCH", "/v1/groups/own/config", config)
        for who, path in (("carol", QUEUE), ("alice", f"/v1/queues/{SOURCE}/own")):
            (message,) = await received(web, who, path)
            await done(web, who, "POST", f"{path}/settle", {"ack": [message["receipt"]]})
        if has_left:
            await done(web, "carol", "DELETE", f"{ACCEPTED}/{NAME}")
        topic = f"/v1/topics/{SOURCE}"
        for who in ("alice", "root"):
            of = topic if who == "alice" else f"/v1/topics/«acme»{SOURCE}"
            for path in (f"{of}/journal/0", f"{of}/trace?partition=0&offset=0", f"{of}/messages"):
                answer = json.dumps(await done(web, who, "GET", path))
                assert "own" in answer, (path, answer)
                assert "workers" not in answer, (path, answer)


async def test_a_queue_is_received_no_more_once_it_is_shared_no_longer(monkeypatch):
    """Neither by a receive that waits, nor is a delivery settled."""
    async with administered(monkeypatch) as web:
        await share(web)
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", config)
        (message,) = await received(web, "carol")
        web.principal = "carol"
        waiting = asyncio.ensure_future(web.ask("POST", f"{QUEUE}/receive", {"wait_ms": 30_000}))
        await asyncio.sleep(0.05)
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        records = {"records": [{"value": "of later"}]}
        await done(web, "alice", "POST", f"/v1/topics/{SOURCE}/records", records)
        status, answer = await waiting
        assert status == 404, answer
        assert "canary" not in json.dumps(answer)
        status, _ = await refused(
            web, "carol", "POST", f"{QUEUE}/settle", {"ack": [message["receipt"]]}
        )
        assert status == 404


async def test_dead_letters_of_a_readers_group_are_its_own_and_name_its_topic(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", {"set": WITH_LETTERS})
        (message,) = await received(web, "carol")
        dead = {"dead_letter": [{"receipt": message["receipt"], "reason": "no"}]}
        await done(web, "carol", "POST", f"{QUEUE}/settle", dead)
        path = f"/v1/dead-letters/{LETTERS}/letters"
        while True:
            web.principal = "carol"
            status, found = await web.ask("GET", path)
            if status == 200 and found["letters"]:
                break
            await asyncio.sleep(0.01)
        assert f'"{NAME}"' in json.dumps(found)
        assert "canary" not in json.dumps(found)
        assert web.node.topics.get(f"«beta»{LETTERS}")


async def test_a_dead_letter_that_waits_is_copied_after_changes_of_the_topic(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", {"set": WITH_LETTERS})
        takes = "errors.deadletterqueue.group.enable"
        await done(
            web, "carol", "POST", "/v1/topics", {"name": LETTERS, "config": {takes: "false"}}
        )
        (message,) = await received(web, "carol")
        dead = {"dead_letter": [{"receipt": message["receipt"], "reason": "no"}]}
        await done(web, "carol", "POST", f"{QUEUE}/settle", dead)
        change = {"set": {"retention.ms": "1000000000"}}
        await done(web, "alice", "PATCH", f"/v1/topics/{SOURCE}/config", change)
        await done(web, "alice", "POST", SHARED, {"topic": SOURCE, "reader": "gamma"})
        await asyncio.sleep(0.05)
        change = {"set": {takes: "true"}}
        await done(web, "carol", "PATCH", f"/v1/topics/{LETTERS}/config", change)
        shares, home = web.node.shares, web.node.topics.get(f"«acme»{SOURCE}")
        while (await shares.ask(home, 0, DescribeCommand())).groups[0].archiving_records:
            await asyncio.sleep(0.01)
        found = await done(web, "carol", "GET", f"/v1/dead-letters/{LETTERS}/letters")
        assert len(found["letters"]) == 1


@pytest.mark.parametrize("is_shared", [True, False])
async def test_nothing_is_written_by_the_name_of_a_shared_topic(is_shared, monkeypatch):
    """No dead letter, and no line of the audit log, also while it is not shared."""
    async with administered(monkeypatch) as web:
        await share(web)
        if not is_shared:
            await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        letters = {"set": {"errors.deadletterqueue.topic.name": NAME}}
        for who, path, body in (
            ("carol", "/v1/groups/workers/config", letters),
            ("root", "/v1/tenants/beta", {"audit_topic": NAME}),
        ):
            _, answer = await refused(web, who, "PATCH", path, body)
            assert NAME in answer["detail"]
            assert "another tenant shares" in answer["detail"]
        assert not web.node.services.configurations.overrides_of_group("«beta»workers")
        assert not (await done(web, "root", "GET", "/v1/tenants/beta")).get("audit_topic")


@pytest.mark.parametrize("is_shared", [True, False])
async def test_dead_letters_wait_while_their_topic_has_the_name_of_a_shared_one(
    is_shared, monkeypatch, caplog
):
    async with administered(monkeypatch) as web:
        await share(web)
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", {"set": WITH_LETTERS})
        await done(web, "alice", "POST", "/v1/topics", {"name": "canary-late"})
        await done(web, "alice", "POST", SHARED, {"topic": "canary-late", "reader": "beta"})
        accepted = {"topic": LETTERS, "source": "acme/canary-late"}
        await done(web, "carol", "POST", ACCEPTED, accepted)
        if not is_shared:
            await done(web, "alice", "DELETE", f"{SHARED}/canary-late/readers/beta")
        (message,) = await received(web, "carol")
        dead = {"dead_letter": [{"receipt": message["receipt"], "reason": "no"}]}
        await done(web, "carol", "POST", f"{QUEUE}/settle", dead)
        copied = web.node.dead_letters
        await until(lambda: copied.failed_total >= 3)
        assert caplog.text.count("that another tenant shares") == 1
        assert f"«beta»{LETTERS}" not in web.node.topics.by_name
        assert (copied.copied_total, copied.given_up_total) == (0, 0)
        await done(web, "carol", "DELETE", f"{ACCEPTED}/{LETTERS}")
        await until(lambda: copied.copied_total == 1)


async def test_no_dead_letter_is_copied_once_the_topic_is_shared_no_longer(monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        settings = WITH_LETTERS | {
            "share.record.lock.duration.ms": "1000",
            "share.delivery.count.limit": "2",
        }
        await done(web, "carol", "PATCH", "/v1/groups/workers/config", {"set": settings})
        for _ in range(2):
            (_message,) = await received(web, "carol", wait_ms=5_000)
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        shares, home = web.node.shares, web.node.topics.get(f"«acme»{SOURCE}")
        await until(lambda: any(one.given_up for *_, one in shares.figures))
        asked = DescribeCommand(["«beta»workers"])
        while (await shares.ask(home, 0, asked)).groups[0].archiving_records:
            await asyncio.sleep(0.01)
        assert web.node.topics.by_name.get(f"«beta»{LETTERS}") is None


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_group_of_operators_receives_a_tenants_topic(is_shared, monkeypatch):
    """By the name of its owner, with dead letters, whether it is shared or not."""
    async with administered(monkeypatch) as web:
        if is_shared:
            await share(web)
        await done(web, "root", "PATCH", "/v1/groups/ops/config", {"set": WITH_LETTERS})
        queue = f"/v1/queues/«acme»{SOURCE}/ops"
        (message,) = await received(web, "root", queue)
        shown = await done(web, "root", "GET", f"/v1/topics/«acme»{SOURCE}/messages")
        assert [one["group"] for one in shown["messages"][0]["groups"]] == ["ops"]
        dead = {"dead_letter": [{"receipt": message["receipt"], "reason": "no"}]}
        await done(web, "root", "POST", f"{queue}/settle", dead)
        await until(lambda: LETTERS in web.node.topics.by_name)
        path = f"/v1/dead-letters/{LETTERS}/letters"
        while not (await done(web, "root", "GET", path))["letters"]:
            await asyncio.sleep(0.01)


async def test_what_the_owner_takes_back_tells_it_of_no_reader(monkeypatch):
    """Whether it was delivered to a reader's group or not; if not, it is delivered no more."""
    async with administered(monkeypatch) as web:
        await share(web)
        await done(web, "alice", "POST", "/v1/topics", {"name": LETTERS})
        path = f"/v1/topics/{LETTERS}/records"
        await done(web, "alice", "POST", path, {"records": [{"value": "dead"}]})
        headers = [["headrace-redrives", "1"], ["headrace-redriven-from", f"{LETTERS}-0:0"]]
        records = [{"value": "dead", "headers": headers}] * 2
        path = f"/v1/topics/{SOURCE}/records"
        await done(web, "alice", "POST", path, {"records": records})
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        for who, queue in (("carol", QUEUE), ("alice", f"/v1/queues/{SOURCE}/own")):
            group = queue.rpartition("/")[2]
            await done(web, who, "PATCH", f"/v1/groups/{group}/config", config)
            # Carol's group has the first record that was sent back, too.
            await received(web, who, queue, max=2 if who == "carol" else 1)
        path = f"/v1/dead-letters/{LETTERS}/take-back"
        for offset in (1, 2):
            asked = {"letter": "0:0", "to": f"{SOURCE}-0:{offset}"}
            (found,) = (await done(web, "alice", "POST", path, {"sent": [asked]}))["results"]
            assert found["taken_back"], found
            assert found["groups"] == ["own"]
        assert await received(web, "carol") == []


async def test_a_reader_searches_what_is_in_the_log_and_nothing_else(monkeypatch):
    """Neither what the owner has not delivered yet, nor what its groups did."""
    async with administered(monkeypatch) as web:
        await share(web)
        later = {"value": "later", "headers": [["headrace-delay", "3600000"]]}
        mixed = {"set": {"headrace.message.type": "mixed"}}
        await done(web, "alice", "PATCH", f"/v1/topics/{SOURCE}/config", mixed)
        path = f"/v1/topics/{SOURCE}/records"
        sent = await done(web, "alice", "POST", path, {"records": [later]})
        assert sent["results"][0]["ok"], sent
        config = {"set": {"share.auto.offset.reset": "earliest"}}
        for who, queue in (("alice", f"/v1/queues/{SOURCE}/owners"), ("carol", QUEUE)):
            group = queue.rpartition("/")[2]
            await done(web, who, "PATCH", f"/v1/groups/{group}/config", config)
            await received(web, who, queue)
        owned = await done(web, "alice", "GET", f"/v1/topics/{SOURCE}/messages")
        assert [one["value"] for one in owned["messages"]] == ["of acme", "later"]
        found = await done(web, "carol", "GET", f"/v1/topics/{NAME}/messages")
        assert [one["value"] for one in found["messages"]] == ["of acme"]
        assert "canary" not in json.dumps(found)
        for answer, group in ((owned, "owners"), (found, "workers")):
            assert [one["group"] for one in answer["messages"][0]["groups"]] == [group]
        web.principal = "carol"
        _, exported = await web.raw("GET", f"/v1/topics/{NAME}/export", b"")
        assert b"of acme" in exported
        assert b"canary" not in exported
        assert b"later" not in exported
        task = await done(web, "carol", "POST", "/v1/searches", {"topic": NAME})
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        while True:
            state = await done(web, "carol", "GET", f"/v1/searches/{task['id']}")
            if state["state"] != "running":
                break
            await asyncio.sleep(0.01)
        for path in ("messages", "export"):
            status, _ = await refused(web, "carol", "GET", f"/v1/topics/{NAME}/{path}")
            assert status == 404


async def test_neither_tenant_learns_what_the_other_does_with_the_topic(monkeypatch):
    """From no operation: the names of groups, dead letters, and messages that are not delivered
    yet are its own affair."""
    async with filled(monkeypatch, tenants=TENANTS) as web:
        shares = TopicShares(web.node.services)
        await shares.share(f"«acme»{TOPIC}", "beta")
        await shares.accept("«beta»kestrel-topic", f"«acme»{TOPIC}", is_operator=False)
        config = CONFIG | {"errors.deadletterqueue.topic.name": "kestrel-letters"}
        await done(web, "carol", "PATCH", "/v1/groups/kestrel-group/config", {"set": config})
        queue = "/v1/queues/kestrel-topic/kestrel-group"
        (message, *_) = await received(web, "carol", queue, max=1)
        dead = {"dead_letter": [{"receipt": message["receipt"], "reason": "kestrel"}]}
        await done(web, "carol", "POST", f"{queue}/settle", dead)
        await until(lambda: "«beta»kestrel-letters" in web.node.topics.by_name)
        commit = CommitCommand(
            "«beta»kestrel-readers",
            NO_GENERATION,
            "",
            None,
            [OffsetToCommit("«beta»kestrel-topic", 0, 1, 0, "kestrel")],
        )
        await web.node.groups.submit(commit)
        sides = {
            "carol": ("kestrel-topic", "kestrel-group", r"secret|alice|'(?:later|half)'|«"),
            "alice": (TOPIC, GROUP, r"kestrel|carol|«beta"),
        }
        for who, (topic, group, foreign) in sides.items():
            for name in READS:
                if name in {"followEvents", "followTopic", "listAcceptedTopics"}:
                    continue
                web.principal = who
                answer = await web.call(name, topic=topic, group=group)
                text = str(answer).replace("«acme»second", "")  # a message
                found = re.findall(f".{{0,60}}(?:{foreign}).{{0,60}}", text)
                assert not found, (who, name, found)


OTHERS = {
    *("followEvents", "followTopic"),  # without an end
    *("createKey", "createAcl", "listAcceptedTopics"),  # the same for both, but what they list
}
WALKED = [name for name in NAMED if name not in OTHERS]


@pytest.mark.parametrize("name", WALKED)
async def test_each_operation_answers_what_is_shared_no_longer_as_what_never_was(name, monkeypatch):
    async with administered(monkeypatch) as web:
        await share(web)
        web.principal = "carol"
        assert "canary" not in str(await web.call(name, topic=NAME, group="g"))
        await done(web, "alice", "DELETE", f"{SHARED}/{SOURCE}/readers/beta")
        web.principal = "carol"
        sees = await web.call(name, topic=NAME, group="g")
        absent = await web.call(name, topic="absent", group="absent-g")
        shown = re.sub(r"[0-9a-f-]{12,}|\d{6,}", "N", str(sees)).replace(NAME, "absent")
        shown = shown.replace("'g'", "'absent-g'")
        assert shown == re.sub(r"[0-9a-f-]{12,}|\d{6,}", "N", str(absent))
        log = web.node.topics.get(f"«acme»{SOURCE}")
        assert log.require_log(0).high_watermark == 1
        assert log.fact.configs == {}
