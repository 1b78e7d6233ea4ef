"""Groups, their offsets and settings over HTTP: consumer groups and share groups alike.

Invariants: parses and encodes; the rules are in `broker/services`. A broker answers for the groups
that it coordinates, and lists those of all brokers. The start of a share group on a partition is
called its offset, as that of a consumer group is: what is before it is finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS
from headrace.broker.services.group_listing import GroupListings
from headrace.broker.services.share_group_administration import SHARE
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.errors import GroupNotEmpty, HeadraceError, NotOwner
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
from headrace.http.partitions import failed_brokers
from headrace.http.problems import Contradiction, details
from headrace.http.topics import (
    config_change,
    config_changes,
    expected_version,
    shown_settings,
    tagged,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from headrace.broker.node import Node
    from headrace.coordination.groups.commands import GroupDescription
    from headrace.http.schemas import Schema

OFFSETS_MAX: Final = 1_000
Partition = tuple[str, int]


class GroupOperations:
    """The operations on groups."""

    def __init__(self, node: Node) -> None:
        self._node = node
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
        self.operations = [
            Operation("GET", groups, "listGroups", "List groups.",
                      self._list, {**PAGE, "state": text(30), "type": text(30)}),
            Operation("GET", group, "getGroup", "Get a group and its members.", self._get, named),
            Operation("DELETE", group, "deleteGroup",
                      "Delete a group without members, and its offsets.",
                      self._delete, changing),
            Operation("GET", f"{group}/offsets", "getGroupOffsets",
                      "Get the offsets and lag of a group.",
                      self._offsets, named),
            Operation("PUT", f"{group}/offsets", "moveGroup",
                      "Set the offsets of a group without members, also by time, start or end.",
                      self._move, changing, fields(["offsets"], offsets=listing(
                          target, OFFSETS_MAX, 1))),
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
        node = self._node
        listings = GroupListings(
            *(node.services.groups, node.services.share_groups),
            *(node.brokers, node.config.broker_id),
        )
        listed = await listings.list(states, types)
        found = [
            {"group": one.group_id, "state": one.state, "type": one.group_type}
            for one in listed.groups
        ]
        answer = page(found, "group", call, "groups")
        return answer | failed_brokers(listed.failed)

    # --- one group ---------------------------------------------------------------------------

    async def _is_share(self, group_id: str) -> bool:
        await self._node.services.groups.ensure_offsets_topic()
        return self._node.services.share_groups.has(group_id)

    async def _described(self, group_id: str) -> GroupDescription:
        """Raises GroupUnknown, NotCoordinator."""
        (described,) = await self._node.services.groups.describe([group_id])
        if described.error is not None:
            raise described.error
        return described

    async def _get(self, call: Call) -> Json:
        group_id = call.path["group"]
        if await self._is_share(group_id):
            known = self._node.services.share_groups.members(group_id)
            return {
                "group": group_id,
                "type": SHARE,
                "state": "Stable" if known.members else "Empty",
                "members": [
                    {
                        "id": one.member_id,
                        "client_id": one.client_id,
                        "host": one.client_host,
                        "topics": [*one.subscribed],
                    }
                    for one in known.members.values()
                ],
            }
        described = await self._described(group_id)
        return {
            "group": group_id,
            "type": described.group_type,
            "state": described.state,
            "members": [
                {
                    "id": one.member_id,
                    "client_id": one.client_id,
                    "host": one.client_host,
                    "instance_id": one.group_instance_id,
                }
                for one in described.members
            ],
        }

    async def _delete(self, call: Call) -> Json:
        group_id = call.path["group"]
        if call.is_dry_run and await self._is_share(group_id):
            await self._node.services.share_groups.delete(group_id, is_dry_run=True)
        elif call.is_dry_run:
            await self._require_empty(group_id)
        else:
            (result,) = await self._node.services.groups.delete([group_id])
            if result.error is not None:
                raise result.error
        return {"group": group_id, "deleted": not call.is_dry_run, "dry_run": call.is_dry_run}

    async def _require_empty(self, group_id: str) -> None:
        """Raises GroupUnknown, GroupNotEmpty, NotCoordinator."""
        if (await self._described(group_id)).members:
            raise GroupNotEmpty(f"group {group_id!r} has members: stop its consumers first")

    # --- offsets -----------------------------------------------------------------------------

    async def _offsets(self, call: Call) -> Json:
        group_id = call.path["group"]
        if await self._is_share(group_id):
            positions = await self._node.services.share_groups.positions(group_id)
            found = [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "offset": one.start_offset if one.start_offset >= 0 else None,
                    "lag": one.lag if one.lag >= 0 else None,
                    **({} if one.error is None else {"error": details(one.error)}),
                }
                for one in positions
            ]
            return {"group": group_id, "offsets": found}
        committed = await self._committed(group_id)
        if not committed:
            await self._described(group_id)
        return {
            "group": group_id,
            "offsets": [
                {
                    "topic": topic,
                    "partition": number,
                    "offset": offset,
                    "lag": self._lag(topic, number, offset),
                }
                for (topic, number), offset in sorted(committed.items())
            ],
        }

    async def _committed(self, group_id: str) -> dict[Partition, int]:
        reply = await self._node.services.groups.offsets(group_id)
        if reply.error is not None:
            raise reply.error
        return {(one.topic, one.partition): one.offset for one in reply.offsets if one.offset >= 0}

    def _lag(self, name: str, number: int, offset: int) -> int | None:
        """None where another broker serves the partition."""
        topic = self._node.topics.by_name.get(name)
        log = topic.log(number) if topic else None
        if topic is None or log is None or not self._node.ownership.is_mine(topic, number):
            return None
        return max(log.high_watermark - max(offset, log.log_start_offset), 0)

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
        if await self._is_share(group_id):
            outcomes = await self._node.services.share_groups.move(
                group_id, wanted, is_dry_run=call.is_dry_run
            )
        else:
            outcomes = await self._commit(group_id, wanted, is_dry_run=call.is_dry_run)
        refused.update((place, error) for place, error in outcomes.items() if error is not None)
        return {
            "group": group_id,
            "dry_run": call.is_dry_run,
            "results": [_moved(one, wanted.get(one), refused.get(one)) for one in places],
        }

    async def _target(self, item: Json) -> int:
        """The offset that one item of the request means. Raises HeadraceError."""
        topic = self._node.topics.get(item["topic"])
        number = int(item["partition"])
        topic.check_partition(number)
        if "offset" in item:
            return int(item["offset"])
        if not self._node.ownership.is_mine(topic, number):
            raise NotOwner(
                f"{topic.name}-{number} is served by another broker, which alone knows its"
                " times and its end: name an offset, or ask a Kafka client"
            )
        log = topic.require_log(number)
        await self._node.partition_ready(log)
        if "timestamp_ms" in item:
            found = await log.reader.offset_of_time(int(item["timestamp_ms"]))
            return log.high_watermark if found.offset < 0 else found.offset
        return log.log_start_offset if item["position"] == "earliest" else log.high_watermark

    async def _commit(
        self, group_id: str, wanted: Mapping[Partition, int], *, is_dry_run: bool
    ) -> Mapping[Partition, HeadraceError | None]:
        await self._require_empty(group_id)
        if is_dry_run:
            return {}
        offsets = [OffsetToCommit(*place, offset) for place, offset in wanted.items()]
        command = CommitCommand(group_id, NO_GENERATION, "", None, offsets)
        reply = await self._node.services.groups.commit(command)
        return {(one.topic, one.partition): one.error for one in reply.results}

    # --- settings ----------------------------------------------------------------------------

    async def _config(self, call: Call) -> Response:
        group_id = call.path["group"]
        configurations = self._node.services.configurations
        answer = {
            "group": group_id,
            "settings": shown_settings(configurations.of_group(group_id)),
        }
        return tagged(answer, configurations.version_of_group(group_id))

    async def _change_config(self, call: Call) -> Response:
        group_id, configurations = call.path["group"], self._node.services.configurations
        changes, version = config_changes(call.body), expected_version(call)
        await configurations.change_group(
            group_id, changes, is_dry_run=call.is_dry_run, version=version
        )
        overrides = dict(self._node.group_configs.overrides(group_id))
        answer = {"group": group_id, "config": overrides, "dry_run": call.is_dry_run}
        return tagged(answer, configurations.version_of_group(group_id))


def _moved(place: Partition, offset: int | None, error: HeadraceError | None) -> Json:
    found: Json = {"topic": place[0], "partition": place[1]}
    if error is not None:
        return found | {"ok": False, "error": details(error)}
    return found | {"ok": True, "offset": offset}
