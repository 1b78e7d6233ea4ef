"""Groups, their offsets and settings over HTTP: consumer groups and share groups alike.

Invariants: parses and encodes; what is done, on whichever broker coordinates a group, is in
`broker/services/group_service`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS
from headrace.broker.services.group_lags import UNKNOWN
from headrace.broker.services.group_service import STREAMS
from headrace.broker.services.reads import AT_END, AT_NEXT, AT_START, AT_TIME, Start
from headrace.coordination.groups.past_offsets import COMMITTED
from headrace.errors import HeadraceError
from headrace.http.operations import (
    DRY_RUN,
    ETAG,
    GROUP,
    INT64_MAX,
    OFFSET,
    PAGE,
    PARTITION,
    SET_GROUP,
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
from headrace.http.partitions import failed_brokers, failed_partitions
from headrace.http.problems import Contradiction, details
from headrace.http.topics import (
    config_change,
    config_changes,
    expected_version,
    shown_settings,
    tagged,
)
from headrace.log.visibility import READ_UNCOMMITTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from headrace.broker.services.group_service import GroupMember, GroupOffset, Partition
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

OFFSETS_MAX: Final = 1_000
TIMES_MAX: Final = 256
"""Partitions of which one answer says the age of a record, each of which is read."""


class GroupOperations:
    """The operations on groups."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = services.all_groups
        groups, group = "/v1/groups", "/v1/groups/{group}"
        named: dict[str, Schema] = {"group": GROUP}
        changing = named | {"dry_run": DRY_RUN}
        with_settings: dict[str, Schema] = {"group": SET_GROUP}
        target = fields(
            ["topic", "partition"],
            topic=TOPIC,
            partition=PARTITION,
            offset=OFFSET,
            timestamp_ms=integer(0, INT64_MAX),
            position={"type": "string", "enum": ["earliest", "latest"]},
        )
        target["maxProperties"] = target["minProperties"] = 3
        times = {"type": "boolean", "description": "Also `lag_ms`: the age of the next record."}
        loaded = {
            "type": "boolean",
            "description": "Load no partition for it: what is not in memory is null.",
        }
        self.operations = [
            Operation("GET", groups, "listGroups", "List groups.",
                      self._list, {**PAGE, "state": text(30), "type": text(30)}),
            Operation("GET", group, "getGroup", "Get a group and its members.", self._get, named),
            Operation("DELETE", group, "deleteGroup",
                      "Delete a group without members, and its offsets.",
                      self._delete, changing),
            Operation("GET", f"{group}/offsets", "getGroupOffsets",
                      "Get the offsets and lag of a group, with `times` also in time.",
                      self._offsets, named | {"times": times, "loaded": loaded}),
            Operation("PUT", f"{group}/offsets", "moveGroup",
                      "Set the offsets of a group without members, also by time, start or end.",
                      self._move, changing, fields(["offsets"], offsets=listing(
                          target, OFFSETS_MAX, 1))),
            Operation("GET", "/v1/topics/{topic}/past-offsets", "listPastOffsets",
                      "List the offsets that groups had committed in a topic at an earlier time.",
                      self._past, {"topic": TOPIC, "group": GROUP,
                                   "at_ms": integer(0, INT64_MAX, default=INT64_MAX)}),
            Operation("GET", f"{group}/config", "getGroupConfig", "Get all settings of a group.",
                      self._config, named),
            Operation("PATCH", f"{group}/config", "changeGroupConfig",
                      "Set and reset settings of a group, in one change.",
                      self._change_config, changing | with_settings, headers=ETAG,
                      body=config_change([*GROUP_DEFINITIONS])),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        states = [call.query["state"]] if "state" in call.query else []
        types = [call.query["type"]] if "type" in call.query else []
        listed = await self._groups.list(states, types)
        found = [
            {"group": one.group_id, "state": one.state, "type": one.group_type}
            for one in listed.groups
        ]
        answer = page(found, "group", call, "groups")
        return answer | failed_brokers(listed.failed)

    # --- one group ---------------------------------------------------------------------------

    async def _get(self, call: Call) -> Json:
        group_id = call.path["group"]
        found = await self._groups.describe(group_id)
        return {
            "group": group_id,
            "type": found.group_type,
            "state": found.state,
            "members": [
                {
                    "id": one.member_id,
                    "client_id": one.client_id,
                    "host": one.client_host,
                    **(
                        {"instance_id": one.instance_id}
                        if one.topics is None
                        else {"topics": one.topics}
                    ),
                    "assignments": [
                        {"topic": topic, "partitions": numbers} for topic, numbers in one.assigned
                    ],
                    **_tasks(found.group_type, one),
                }
                for one in found.members
            ],
        }

    async def _delete(self, call: Call) -> Json:
        group_id = call.path["group"]
        await self._groups.delete(group_id, is_dry_run=call.is_dry_run)
        return {"group": group_id, "deleted": not call.is_dry_run, "dry_run": call.is_dry_run}

    # --- offsets -----------------------------------------------------------------------------

    async def _offsets(self, call: Call) -> Json:
        group_id = call.path["group"]
        if call.query.get("loaded"):
            return {"group": group_id, **await self._loaded(group_id)}
        offsets = await self._groups.offsets(group_id)
        ages = await self._ages(offsets[:TIMES_MAX]) if call.query.get("times") else {}
        found = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset if one.offset >= 0 else None,
                "lag": one.lag if one.lag >= 0 else None,
                **({"lag_ms": ages.get((one.topic, one.partition))} if ages else {}),
                **({} if one.error is None else {"error": details(one.error)}),
            }
            for one in offsets
        ]
        return {"group": group_id, "offsets": found}

    async def _loaded(self, group_id: str) -> Json:
        offsets, lags = await self._groups.committed(group_id), self._services.lags
        if offsets is None:
            found, failed = await lags.of_share_group(group_id)
        else:
            found, failed = await lags.of_places(offsets)
        names = "topic", "partition", "offset", "lag", "lag_ms"
        rows = [
            dict(zip(names, (None if value == UNKNOWN else value for value in one), strict=True))
            for one in found
        ]
        return {"offsets": rows, **failed_brokers(failed)}

    async def _past(self, call: Call) -> Json:
        topic = self._services.topics.readable.get(call.path["topic"])
        at_ms = min(call.query.get("at_ms", INT64_MAX), self._services.clock.now_ms())
        asked = topic, at_ms, call.query.get("group", "")
        found, is_cut, failed = await self._services.past_offsets.of(*asked)
        groups: dict[str, list[Json]] = {}
        for one in found:
            is_known = one.state == COMMITTED
            groups.setdefault(one.group, []).append(
                {
                    "partition": one.partition,
                    "state": one.state,
                    "offset": one.offset if is_known else None,
                    "committed_ms": one.committed_ms if is_known else None,
                }
            )
        return {
            "topic": topic.name,
            "at_ms": at_ms,
            "groups": [{"group": one, "offsets": offsets} for one, offsets in groups.items()],
            "is_partial": is_cut or bool(failed),
            **failed_partitions(failed),
        }

    async def _ages(self, offsets: Sequence[GroupOffset]) -> dict[Partition, int | None]:
        """The age of the first record that the group has not finished, in ms; 0 where it has
        finished all, None where that record cannot be read."""
        ages: dict[Partition, int | None] = {}
        starts: dict[str, dict[int, Start]] = {}
        for one in offsets:
            ages[one.topic, one.partition] = 0 if one.lag == 0 else None
            if one.lag > 0 and one.offset >= 0:
                starts.setdefault(one.topic, {})[one.partition] = Start(AT_NEXT, one.offset)
        now_ms = self._services.appends.clock.now_ms()
        for name, places in starts.items():
            topic = self._services.topics.readable.find(name)
            if topic is None:
                continue
            pages = await self._services.reads.pages(topic, places, 1, READ_UNCOMMITTED)
            for number, read in pages.items():
                if not isinstance(read, HeadraceError) and read.records:
                    ages[name, number] = max(now_ms - read.records[0].timestamp_ms, 0)
        return ages

    async def _move(self, call: Call) -> Json:
        group_id = call.path["group"]
        wanted: dict[Partition, int] = {}
        refused: dict[Partition, HeadraceError | None] = {}
        places: list[Partition] = []
        for item in call.body["offsets"]:
            place = item["topic"], int(item["partition"])
            if place in places:
                raise Contradiction(f"{place[0]}-{place[1]} is named twice")
            places.append(place)
            try:
                wanted[place] = await self._target(item)
            except HeadraceError as error:
                refused[place] = error
        outcomes = await self._groups.move(group_id, wanted, is_dry_run=call.is_dry_run)
        refused.update((place, error) for place, error in outcomes.items() if error is not None)
        return {
            "group": group_id,
            "dry_run": call.is_dry_run,
            "results": [_moved(one, wanted.get(one), refused.get(one)) for one in places],
        }

    async def _target(self, item: Json) -> int:
        """The offset that one item of the request means. Raises HeadraceError."""
        topic = self._services.topics.readable.get(item["topic"])
        number = int(item["partition"])
        topic.check_partition(number)
        if "offset" in item:
            return int(item["offset"])
        start = Start(AT_START if item.get("position") == "earliest" else AT_END)
        if "timestamp_ms" in item:
            start = Start(AT_TIME, int(item["timestamp_ms"]))
        found = await self._services.reads.read(topic, number, start, 0, READ_UNCOMMITTED)
        return found.next_offset

    # --- settings ----------------------------------------------------------------------------

    async def _config(self, call: Call) -> Response:
        group_id = call.path["group"]
        configurations = self._services.configurations
        answer = {
            "group": group_id,
            "settings": shown_settings(configurations.of_group(group_id)),
        }
        return tagged(answer, configurations.version_of_group(group_id))

    async def _change_config(self, call: Call) -> Response:
        group_id, configurations = call.path["group"], self._services.configurations
        changes, version = config_changes(call.body), expected_version(call)
        await configurations.change_group(
            group_id, changes, is_dry_run=call.is_dry_run, version=version
        )
        overrides = dict(configurations.overrides_of_group(group_id))
        answer = {"group": group_id, "config": overrides, "dry_run": call.is_dry_run}
        return tagged(answer, configurations.version_of_group(group_id))


def _tasks(group_type: str, member: GroupMember) -> Json:
    if group_type != STREAMS:
        return {}
    names = "role", "subtopology", "partitions"
    return {"tasks": [dict(zip(names, one, strict=True)) for one in member.tasks]}


def _moved(place: Partition, offset: int | None, error: HeadraceError | None) -> Json:
    found: Json = {"topic": place[0], "partition": place[1]}
    if error is not None:
        return found | {"ok": False, "error": details(error)}
    return found | {"ok": True, "offset": offset}
