"""Parked keys over HTTP: set the messages of a key aside, list what is set aside, release it.

Invariants: parses and encodes; the rules are in `coordination/shares`. A key is parked on every
partition that this broker serves, since a producer may choose its partition in a way of its own.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from headrace.coordination.shares.commands import (
    ListParkedCommand,
    ParkKeyCommand,
    ReleaseKeyCommand,
)
from headrace.errors import GroupUnknown, NotOwner, RecordStateInvalid
from headrace.http.operations import (
    GROUP,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    listing,
    text,
)
from headrace.http.problems import Contradiction
from headrace.http.records import as_text
from headrace.http.search import partitions_elsewhere

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import ParkedReply
    from headrace.http.schemas import Schema

KEYS_MAX: Final = 100


class ParkedOperations:
    """The operations on parked keys."""

    def __init__(self, node: Node) -> None:
        self._node = node
        path = "/v1/queues/{topic}/{group}"
        named: dict[str, Schema] = {"topic": TOPIC, "group": GROUP}
        body = fields(
            ["keys"],
            keys=listing(text(4_096), KEYS_MAX, 1),
            key_encoding={"type": "string", "enum": ["text", "base64"], "default": "text"},
        )
        self.operations = [
            Operation("GET", f"{path}/parked", "listParkedKeys",
                      "Keys whose messages a group sets aside.", self._list, named),
            Operation("POST", f"{path}/park", "parkKeys",
                      "Set the messages of keys aside; those of other keys go on.",
                      self._park, named, body),
            Operation("POST", f"{path}/unpark", "unparkKeys",
                      "Deliver the messages of parked keys again, from the first one on.",
                      self._unpark, named, body),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        topic, group_id = self._node.topics.get(call.path["topic"]), call.path["group"]
        found: list[Json] = []
        for number in self._served(topic):
            try:
                asked = ListParkedCommand(group_id)
                reply = await self._node.shares.ask_of_keys(topic, number, asked)
            except GroupUnknown:
                continue
            for one in cast("ParkedReply", reply).keys:
                key, is_text = as_text(one.key)
                shown: Json = {"partition": number, "key": key}
                if not is_text:
                    shown["key_encoding"] = "base64"
                found.append(shown | {"parked_ms": one.at_ms, "records": one.records})
        return self._answer(topic, group_id) | {"parked": found}

    async def _park(self, call: Call) -> Json:
        topic, group_id = self._node.topics.get(call.path["topic"]), call.path["group"]
        keys = _keys(call.body)
        self._node.shares.check_parks(group_id)  # before the group begins on the topic
        for number in self._served(topic):
            await self._node.shares.begin(topic, number, group_id)
            for key in keys:
                command = ParkKeyCommand(group_id, key, crc32(key))
                await self._node.shares.ask_of_keys(topic, number, command)
        return self._answer(topic, group_id) | {"parked": len(keys)}

    async def _unpark(self, call: Call) -> Json:
        topic, group_id = self._node.topics.get(call.path["topic"]), call.path["group"]
        released: dict[str, None] = {}
        keys = list(zip(call.body["keys"], _keys(call.body), strict=True))
        for number in self._served(topic):
            for name, key in keys:
                try:
                    command = ReleaseKeyCommand(group_id, key)
                    await self._node.shares.ask_of_keys(topic, number, command)
                except (GroupUnknown, RecordStateInvalid):
                    continue  # it is not parked on this partition
                released[name] = None
        return self._answer(topic, group_id) | {"released": len(released), "keys": [*released]}

    def _served(self, topic: Topic) -> list[int]:
        count = range(len(topic.partitions))
        served = [number for number in count if self._node.ownership.is_mine(topic, number)]
        if not served:
            raise NotOwner(f"this broker serves no partition of {topic.name}: ask another one")
        return served

    def _answer(self, topic: Topic, group_id: str) -> Json:
        return {
            "topic": topic.name,
            "group": group_id,
            "broker": self._node.config.broker_id,
            "elsewhere": partitions_elsewhere(self._node, topic),
        }


def _keys(body: Json) -> list[bytes]:
    """Raises Contradiction."""
    if body.get("key_encoding", "text") == "text":
        return [key.encode() for key in body["keys"]]
    try:
        return [base64.b64decode(key, validate=True) for key in body["keys"]]
    except ValueError as error:
        raise Contradiction(f"a key is no base64: {error}"[:200]) from error
