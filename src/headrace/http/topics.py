"""Topics and their settings over HTTP.

Invariants: parses and encodes; the rules are in `broker/services`. Lists are sorted by name and
come in pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import JSONResponse

from headrace.broker.services.configurations import (
    DELETE,
    SET,
    ConfigChange,
    Setting,
    version_of,
)
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.topics.topic_config import DEFINITIONS
from headrace.coordination.quotas.entities import MUTATION
from headrace.http.operations import (
    CREATED,
    DRY_RUN,
    ETAG,
    PAGE,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    page,
    text,
)
from headrace.http.partitions import failed_brokers
from headrace.http.problems import Contradiction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.responses import Response

    from headrace.broker.services.services import Services
    from headrace.broker.services.topic_figures import TopicTotals
    from headrace.broker.services.topic_service import PartitionState
    from headrace.http.authorization import Rights
    from headrace.http.schemas import Schema

PARTITIONS_MAX: Final = 10_000
"""Of one topic: what Kafka's tools take for a cluster's worth."""
VALUE_LENGTH_MAX: Final = 10_000
LAGS_MAX: Final = 10
"""Groups that a list shows for each topic, those with the largest lag."""


def config_change(names: Sequence[str]) -> Schema:
    """The body that changes some of these settings."""
    return change_of({"type": "string", "enum": [*names]})


def change_of(name: Schema) -> Schema:
    """The body that changes settings with names of this schema."""
    found = fields(
        set={
            "type": "object",
            "propertyNames": name,
            "additionalProperties": text(VALUE_LENGTH_MAX),
            "description": "Settings to set.",
        },
        reset=listing(name, 1_000),
    )
    return found | {"minProperties": 1}


def config_changes(body: Json) -> list[ConfigChange]:
    """What a body of `config_change` asks for. Raises Contradiction."""
    both = sorted(set(body.get("set", ())) & set(body.get("reset", ())))
    if both:
        raise Contradiction(f"{both[0]} is both set and reset: do one of them")
    changes = [ConfigChange(name, SET, value) for name, value in body.get("set", {}).items()]
    return changes + [ConfigChange(name, DELETE) for name in dict.fromkeys(body.get("reset", ()))]


def tagged(answer: Json, version: str) -> Response:
    """A response with the ETag of the settings that it shows."""
    return JSONResponse(answer, headers={"ETag": f'"{version}"'})


def expected_version(call: Call) -> str:
    """What If-Match asks for; empty: anything. Raises Contradiction."""
    given: str = call.request.headers.get("if-match", "*").strip()
    if given == "*":
        return ""
    if not (len(given) > 2 and given[0] == given[-1] == '"'):
        raise Contradiction("If-Match is one ETag in double quotes, as it came, or *")
    return given[1:-1]


def shown_settings(settings: Sequence[Setting]) -> list[Json]:
    """Settings as they are, for a response."""
    return [
        {
            "name": setting.definition.name,
            "value": setting.value,
            "default": setting.default,
            "is_set": setting.is_override,
            "documentation": setting.definition.documentation,
        }
        for setting in settings
    ]


class TopicOperations:
    """The operations on topics."""

    def __init__(self, services: Services) -> None:
        self._services = services
        topics, topic = "/v1/topics", "/v1/topics/{topic}"
        named: dict[str, Schema] = {"topic": TOPIC}
        changing = named | {"dry_run": DRY_RUN}
        new: Mapping[str, Schema] = {
            "name": TOPIC,
            "partitions": integer(1, PARTITIONS_MAX),
            "replication_factor": integer(1, 32),
            "config": config_change([*DEFINITIONS])["properties"]["set"],
        }
        prefix = text(283, description="Only names that begin with this.")
        details = {
            "type": "boolean",
            "description": "Also records, bytes, rates and the lag of groups, as far as known.",
        }
        self.operations = [
            Operation("GET", topics, "listTopics", "List topics.", self._list,
                      {**PAGE, "prefix": prefix, "internal": {"type": "boolean"},
                       "details": details}),
            Operation("POST", topics, "createTopic", "Create a topic.", self._create,
                      {"dry_run": DRY_RUN}, fields(["name"], **new), quota=MUTATION,
                      success=CREATED),
            Operation("GET", topic, "getTopic", "Get a topic, its partitions and settings.",
                      self._get, named),
            Operation("PATCH", topic, "growTopic", "Increase the number of partitions.", self._grow,
                      changing, fields(["partitions"], partitions=integer(1, PARTITIONS_MAX)),
                      quota=MUTATION),
            Operation("DELETE", topic, "deleteTopic", "Delete a topic and its records.",
                      self._delete, changing, quota=MUTATION),
            Operation("GET", f"{topic}/config", "getTopicConfig", "Get all settings of a topic.",
                      self._config, named),
            Operation("PATCH", f"{topic}/config", "changeTopicConfig",
                      "Set and reset settings of a topic, in one change.",
                      self._change_config, changing, headers=ETAG,
                      body=config_change([*DEFINITIONS])),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        prefix, internal = call.query.get("prefix", ""), call.query.get("internal", False)
        readable = self._services.topics.readable
        topics = [readable.get(name) for name in readable.names()]
        found = [
            {
                "name": topic.name,
                "id": str(topic.id),
                "partitions": len(topic.partitions),
                "internal": topic.is_internal,
            }
            for topic in topics
            if topic.name.startswith(prefix) and (internal or not topic.is_internal)
        ]
        answer = page(found, "name", call, "topics")
        if call.query.get("details"):
            names = [one["name"] for one in answer["topics"]]
            totals, failed = await self._services.topic_figures.of(names)
            for one in answer["topics"]:
                one.update(_details(totals[one["name"]], call.rights))
            answer |= failed_brokers(failed)
        return answer

    async def _create(self, call: Call) -> Response:
        body = call.body
        new = NewTopic(
            body["name"],
            int(body.get("partitions", -1)),
            int(body.get("replication_factor", -1)),
            body.get("config", {}),
        )
        fact = await self._services.topics.create(new, is_dry_run=call.is_dry_run)
        call.charge = 0 if call.is_dry_run else fact.partition_count
        name = quote(call.view.name(fact.name), safe="")
        return JSONResponse(
            {
                "name": fact.name,
                "id": None if call.is_dry_run else str(fact.id),
                "partitions": fact.partition_count,
                "replication_factor": fact.replication_factor,
                "config": fact.configs,
                "dry_run": call.is_dry_run,
            },
            200 if call.is_dry_run else int(CREATED),
            {} if call.is_dry_run else {"Location": f"/v1/topics/{name}"},
        )

    async def _get(self, call: Call) -> Json:
        topic = self._services.topics.readable.get(call.path["topic"])
        return {
            "name": topic.name,
            "id": str(topic.id),
            "internal": topic.is_internal,
            "replication_factor": topic.fact.replication_factor,
            "config": topic.fact.configs,
            "partitions": [_partition(one) for one in self._services.topics.describe(topic)],
        }

    async def _grow(self, call: Call) -> Json:
        name, count = call.path["topic"], int(call.body["partitions"])
        known = self._services.topics.find(name)
        before = 0 if known is None else len(known.partitions)
        await self._services.topics.add_partitions(name, count, is_dry_run=call.is_dry_run)
        call.charge = 0 if call.is_dry_run else max(0, count - before)
        return {"name": name, "partitions": count, "dry_run": call.is_dry_run}

    async def _delete(self, call: Call) -> Json:
        name = call.path["topic"]
        known = self._services.topics.find(name)
        await self._services.topics.delete(name, is_dry_run=call.is_dry_run)
        call.charge = 0 if known is None or call.is_dry_run else len(known.partitions)
        return {"name": name, "deleted": not call.is_dry_run, "dry_run": call.is_dry_run}

    async def _config(self, call: Call) -> Response:
        name = call.path["topic"]
        settings = self._services.configurations.of_topic(name)
        version = version_of(self._services.topics.readable.get(name).fact.configs)
        return tagged({"topic": name, "settings": shown_settings(settings)}, version)

    async def _change_config(self, call: Call) -> Response:
        name = call.path["topic"]
        changes = config_changes(call.body)
        configurations = self._services.configurations
        version = expected_version(call)
        await configurations.change_topic(
            name, changes, is_dry_run=call.is_dry_run, version=version
        )
        overrides = dict(self._services.topics.get(name).fact.configs)
        answer = {"topic": name, "config": overrides, "dry_run": call.is_dry_run}
        return tagged(answer, version_of(overrides))


def _details(totals: TopicTotals, rights: Rights) -> Json:
    ordered = sorted(totals.lags.items(), key=lambda one: (-one[1], one[0]))
    known: list[Json] = [{"group": group, "records": count} for group, count in ordered]
    lags = rights.shown(known, "topics.lags")  # before they are cut and added up
    return {
        "partitions_shown": len(totals.partitions),
        "is_partial": totals.is_partial,
        "lag_is_partial": totals.is_lag_partial,
        "records": totals.records,
        "size_bytes": totals.size_bytes,
        "records_in_per_s": totals.rates.records_in,
        "bytes_in_per_s": totals.rates.bytes_in,
        "bytes_out_per_s": totals.rates.bytes_out,
        "lag_records": sum(one["records"] for one in lags),
        "lags": lags[:LAGS_MAX],
    }


def _partition(one: PartitionState) -> Json:
    found: Json = {
        "partition": one.number,
        "leader": one.leader.broker,
        "leader_epoch": one.leader.leader_epoch,
    }
    if one.offsets is not None:
        found["start_offset"], found["end_offset"] = one.offsets
        found["size_bytes"] = one.size_bytes
    return found
