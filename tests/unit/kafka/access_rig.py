"""Clients with principals, and requests made from Kafka's definitions that name all they can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kit.kafka_client import Client
from tests.kit.records import batch

from headrace.kafka import apis
from headrace.kafka.wire.definitions import REQUEST, load
from headrace.kafka.wire.schema import read_response, write_request

if TYPE_CHECKING:
    from uuid import UUID

    from tests.kit.broker import BrokerHarness

    from headrace.broker.security.principal import Principal
    from headrace.kafka.apis import Api

TOPIC, GROUP, TRANSACTION = "secret-topic", "secret-group", "secret-txn"
ABSENT = {TOPIC: "absent-topic", GROUP: "absent-group", TRANSACTION: "absent-txn"}


class NamedClient(Client):
    """A client with a principal, whose answers are read by the broker's own codecs."""

    def __init__(self, rig: BrokerHarness, principal: Principal, client_id: str = "t") -> None:
        super().__init__(rig.face)
        self._client_id = client_id.encode()
        self.connection.session.principal = principal

    def send(self, api_key: int, version: int, request: dict[str, Any]) -> None:
        header = b"".join(
            number.to_bytes(size, "big")
            for number, size in (
                *((api_key, 2), (version, 2), (len(self.asked), 4)),
                (len(self._client_id), 2),
            )
        )
        api = apis.APIS.get(api_key) or apis.OWN_APIS[api_key]
        tags = b"\x00" if version >= api.flexible_from else b""
        frame = header + self._client_id + tags + write_request(api_key, version, request)
        self.asked.append((api_key, version))
        self.connection.data_received(len(frame).to_bytes(4, "big") + frame)

    def answers(self) -> list[Any]:
        found, at, out = [], 0, bytes(self.transport.out)
        while at < len(out):
            end = at + 4 + int.from_bytes(out[at : at + 4], "big")
            api_key, version = self.asked[len(found)]
            api = apis.APIS.get(api_key) or apis.OWN_APIS[api_key]
            begin = at + 8 + (version >= api.flexible_from and api_key != apis.API_VERSIONS)
            found.append(read_response(api_key, version, out[:end], begin))
            at = end
        return found


TEXTS = {
    **dict.fromkeys(
        ("name", "topic", "topic_name", "topic_names", "subscribed_topic_names"), TOPIC
    ),
    **dict.fromkeys(("source_topics", "repartition_sink_topics", "resource_name"), TOPIC),
    **dict.fromkeys(("group_id", "groups", "group_ids", "groups_names"), GROUP),
    **dict.fromkeys(("key", "coordinator_keys"), GROUP),
    **dict.fromkeys(("transactional_id", "transactional_ids"), TRANSACTION),
    "v3_and_below_transactional_id": TRANSACTION,
    "member_id": "m",
}
VALUES = {
    "resource_type": 2,
    "producer_id": -1,
    "producer_epoch": -1,
    "replica_id": -1,
    "session_epoch": -1,
    "share_session_epoch": 0,
    "forgotten_topics_data": [],
    "acknowledgement_batches": [],
    "topics_filter": [],
    "cursor": None,
    "assignments": [],
    "members": [],
    "max_wait_ms": 0,
    "acks": -1,
}
SINGLES = ("int8", "int16", "int32", "int64", "uint16", "uint32", "float64")


def made(api: Api, version: int, topic_id: UUID) -> dict[str, Any]:
    """A request of the API that names every resource it can."""
    definition = load(api.key, version, REQUEST)

    def struct(name: str) -> dict[str, Any]:
        fields = [field for field in definition.structs[name] if field.is_present]
        found: dict[str, Any] = {}
        for field in fields:
            if field.name in VALUES:
                found[field.name] = VALUES[field.name]
            elif field.kind in definition.structs:
                found[field.name] = [struct(field.kind)] if field.is_array else struct(field.kind)
            elif field.kind == "string" and field.name in TEXTS:
                text = TEXTS[field.name]
                found[field.name] = [text] if field.is_array else text
            elif field.is_array:
                found[field.name] = [0] if field.kind in SINGLES else []
            elif field.kind == "uuid":
                named = {one.name for one in fields} & {"name", "topic", "topic_name"}
                found[field.name] = None if named else topic_id
            elif field.is_required:
                empty = {"bytes": b"", "string": "", "bool": False, "records": b""}
                found[field.name] = empty.get(field.kind, 0)
                if field.is_nullable:
                    found[field.name] = None
            if field.kind == "records":
                found[field.name] = batch(b"v")
        return found

    return struct(definition.name)


def codes_in(answer: Any) -> set[int]:
    found: set[int] = set()
    if isinstance(answer, tuple | list):
        for item in answer:
            found |= codes_in(item)
    elif hasattr(answer, "_values"):
        for name in answer.__slots__:
            value = getattr(answer, name)
            if name.endswith("error_code") and isinstance(value, int):
                found.add(value)
            found |= codes_in(value)
    return found


def renamed(request: Any) -> Any:
    if isinstance(request, dict):
        return {name: renamed(value) for name, value in request.items()}
    if isinstance(request, list):
        return [renamed(item) for item in request]
    return ABSENT.get(request, request) if isinstance(request, str) else request


def texts_of(answer: Any) -> str:
    text = repr(answer)
    for name, absent in ABSENT.items():
        text = text.replace(absent, name)
    return text
