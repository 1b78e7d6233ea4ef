"""Settings of brokers over HTTP."""

from __future__ import annotations

import json

from tests.kit.broker import broker
from tests.unit.http.http_rig import Web, on_the_web
from tests.unit.http.test_queues_of_brokers import with_brokers
from tests.waiting import until

NAME = "log.retention.ms"


def named(answer, name=NAME):
    (found,) = [one for one in answer["settings"] if one["name"] == name]
    return found


async def shown(web, path, name=NAME):
    status, answer = await web.ask("GET", path)
    assert status == 200, answer
    return named(answer, name)


def path_of(broker):
    return f"/v1/brokers/{broker}/config"


@on_the_web
async def test_a_setting_says_where_its_value_comes_from_and_what_else_it_would_be(web):
    own = path_of(web.node.config.broker_id)
    one = await shown(web, own)
    assert (one["source"], one["unit"], one["type"], one["change"]) == (
        "default",
        "ms",
        "integer",
        "live",
    )
    assert one["value"] == one["default"] == "604800000"
    cluster = await shown(web, "/v1/cluster/config")
    assert (cluster["value"], cluster["source"]) == (None, "unset")
    for path, value in (("/v1/cluster/config", "7000"), (own, "8000")):
        status, answer = await web.ask("PATCH", path, {"set": {NAME: value}})
        assert (status, answer["changed"]) == (200, [NAME])
    one = await shown(web, own)
    assert (one["value"], one["source"]) == ("8000", "broker")
    assert [(each["value"], each["source"]) for each in one["values"]] == [
        ("8000", "broker"), ("7000", "cluster"), ("604800000", "default"),
    ]  # fmt: skip
    assert (await shown(web, "/v1/cluster/config"))["value"] == "7000"
    await web.ask("PATCH", own, {"reset": [NAME]})
    assert (await shown(web, own))["source"] == "cluster"
    await web.ask("PATCH", "/v1/cluster/config", {"reset": [NAME]})
    assert (await shown(web, own))["source"] == "default"


@on_the_web
async def test_a_dry_run_checks_and_changes_nothing(web):
    own = path_of(web.node.config.broker_id)
    status, answer = await web.ask("PATCH", f"{own}?dry_run=true", {"set": {NAME: "1"}})
    assert (status, answer["dry_run"]) == (200, True)
    assert (await shown(web, own))["source"] == "default"
    for body, expected in (
        ({"set": {NAME: "soon"}}, "ConfigInvalid"),
        ({"set": {"node.id": "7"}}, "ConfigInvalid"),
        ({"set": {"log.retention.mss": "7"}}, "ConfigInvalid"),
        ({"set": {"log.cleanup.policy": "compact"}}, "ConfigInvalid"),
        ({"set": {NAME: "1"}, "reset": [NAME]}, "Contradiction"),
    ):
        for query in ("?dry_run=true", ""):
            status, answer = await web.ask("PATCH", own + query, body)
            assert (status, answer["code"]) == (409, expected), answer
    assert (await shown(web, own))["source"] == "default"


@on_the_web
async def test_what_needs_a_restart_or_never_changes_is_said_and_secrets_are_masked(web):
    own = path_of(web.node.config.broker_id)
    assert (await shown(web, own, "node.id"))["change"] == "restart"
    assert (await shown(web, own, "log.cleanup.policy"))["change"] == "never"
    _, answer = await web.ask("GET", own)
    sensitive = [one for one in answer["settings"] if one["sensitive"]]
    assert {"log.dirs", "ssl.keystore.key"} <= {one["name"] for one in sensitive}
    assert {one["value"] for one in sensitive} == {one["default"] for one in sensitive} == {None}
    assert {each["value"] for one in sensitive for each in one["values"]} == {None}


@on_the_web
async def test_a_broker_that_is_not_there_is_said_so_and_may_be_given_settings(web):
    status, answer = await web.ask("GET", path_of(77))
    assert (status, answer["code"]) == (404, "BrokerUnknown")
    status, _ = await web.ask("PATCH", path_of(77), {"set": {NAME: "9000"}})
    assert status == 200
    assert web.node.services.settings.overrides("77") == {NAME: "9000"}


async def test_the_audit_log_names_the_broker_and_no_values(caplog):
    caplog.set_level("INFO", "headrace.audit")
    async with broker() as rig:
        web = Web(rig)
        await web.ask("PATCH", path_of(77), {"set": {NAME: "9000"}})
        await web.ask("PATCH", "/v1/cluster/config", {"set": {NAME: "9000"}})
    lines = [json.loads(one.message) for one in caplog.records if one.name == "headrace.audit"]
    assert [(one["request"], one["resources"]) for one in lines] == [
        ("changeBrokerConfig", ["broker 77"]),
        ("changeClusterConfig", ["kafka-cluster"]),
    ]
    assert "9000" not in str(lines)


@with_brokers(2)
async def test_any_broker_shows_and_changes_the_settings_of_each(cluster):
    webs = [Web(rig) for rig in cluster.rigs.values()]
    for web in webs:
        await until(lambda web=web: len(web.node.services.cluster.brokers()) == 2)
    status, _ = await webs[0].ask("PATCH", path_of(2), {"set": {NAME: "5000"}})
    assert status == 200
    for web in webs:  # at once: the broker itself has carried it out
        assert (await shown(web, path_of(2)))["value"] == "5000"
        assert (await shown(web, path_of(1)))["source"] == "default"
        assert (await shown(web, path_of(2), "node.id"))["value"] == "2"
    status, answer = await webs[0].ask("PATCH", path_of(2), {"set": {NAME: "soon"}})
    assert (status, answer["code"]) == (409, "ConfigInvalid")
