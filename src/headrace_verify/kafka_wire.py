"""A Kafka protocol client for attacks and tests: sends any request, checks every response.

Invariants: no retries and nothing hidden, because an attack must know which request was answered
and how. Requests are plain dicts, encoded with kio's schemas rather than the broker's own; a field
that a dict omits gets its default or the smallest value of its type.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from headrace.kafka.client.blocking import BlockingConnection
from headrace.kafka.client.exchange import answer_body, request_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 10, 19, 20, 22
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def is_in_kio(api: int, version: int) -> bool:
    """Whether kio knows this version of an API: a Kafka that is newer than kio has others."""
    return version in schema_name_map.get(api_key_map.get(api, ""), {})


class Refused(ConnectionError):
    """The broker returned an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error code {code}")
        self.code = code


def request_bytes(api: int, version: int, correlation_id: int, **values: Any) -> bytes:
    """Encode a request with its size prefix."""
    return request_of(b"verify", api, version, correlation_id, values)


def request_of(
    client_id: bytes, api: int, version: int, correlation_id: int, values: dict[str, Any]
) -> bytes:
    """Encode such a request of another client."""
    body, is_flexible = encoded_body(api, version, values)
    return request_frame(client_id, api, version, correlation_id, body, is_flexible=is_flexible)


def encoded_body(api: int, version: int, values: dict[str, Any]) -> tuple[bytes, bool]:
    """Return (the body of a request, whether its header is flexible)."""
    request: Any = _request_schema(api, version)
    body = io.BytesIO()
    entity_writer(request)(body, build_entity(request, values))
    return body.getvalue(), request.__flexible__


def answer_of(api: int, version: int, answer: bytes, correlation_id: int) -> Any:
    """Decode a response without its size prefix.

    Raises ConnectionError if it answers another request, ValueError if bytes are left over.
    """
    is_flexible = response_schema(api, version).__flexible__
    body = answer_body(answer, api, correlation_id, is_flexible=is_flexible)
    return decoded_body(api, version, body)


def decoded_body(api: int, version: int, body: bytes) -> Any:
    """Decode a response body. Raises ValueError if bytes are left over."""
    entity, size = entity_reader(response_schema(api, version))(body, 0)
    if size != len(body):
        raise ValueError(f"{len(body) - size} bytes are left over after the response")
    return entity


class KafkaWire:
    """One connection."""

    def __init__(
        self, address: tuple[str, int], timeout_s: float = 60, client_id: bytes = b"verify"
    ) -> None:
        self.address = address
        self._connection = BlockingConnection(address, timeout_s, client_id)
        self.socket = self._connection.socket

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def call(self, api: int, version: int, **values: Any) -> Any:
        """Send a request and wait for the response. Raises OSError if the connection breaks."""
        body, is_flexible = encoded_body(api, version, values)
        answer = self._connection.call(api, version, body, is_flexible=is_flexible)
        return decoded_body(api, version, answer)

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self._connection.send(data)

    def receive(self) -> bytes:
        """Receive one response without its size prefix. Raises ConnectionResetError at the end."""
        return self._connection.receive()

    def is_closed(self) -> bool:
        """Return whether the broker closes the connection without another response."""
        try:
            self.receive()
        except ConnectionResetError:
            return True
        return False

    def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        """Raises Refused."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        made = self.call(CREATE_TOPICS, 5, topics=[topic], timeout=5000)
        _check(made.topics[0].error_code)

    def new_producer(self) -> tuple[int, int]:
        """Return (producer id, epoch). Raises Refused."""
        made = self.call(INIT_PRODUCER_ID, 1, transaction_timeout=1000)
        _check(made.error_code)
        return int(made.producer_id), int(made.producer_epoch)

    def produce(self, topic: str, partition: int, batch: bytes) -> int:
        """Produce with acks=all; returns the base offset. Raises Refused."""
        data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
        done = self.call(PRODUCE, 7, acks=-1, timeout=5000, topic_data=[data])
        answer = done.responses[0].partition_responses[0]
        _check(answer.error_code)
        return int(answer.base_offset)

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[bytes, int]:
        """Return (batches from `offset` on, high watermark). Raises Refused."""
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 4 << 20}
        found = self.call(
            FETCH,
            4,
            replica_id=-1,
            max_bytes=4 << 20,
            topics=[{"topic": topic, "partitions": [part]}],
        )
        answer = found.responses[0].partitions[0]
        _check(answer.error_code)
        return bytes(answer.records or b""), int(answer.high_watermark)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit a group's offset. Raises Refused."""
        part = {"partition_index": partition, "committed_offset": offset}
        topics = [{"name": topic, "partitions": [part]}]
        done = self.call(
            OFFSET_COMMIT,
            2,
            group_id=group,
            generation_id_or_member_epoch=-1,
            retention_time=-1,
            topics=topics,
        )
        _check(done.topics[0].partitions[0].error_code)

    def committed(self, group: str, topic: str, partition: int) -> int:
        """Return a group's committed offset, or -1. Raises Refused."""
        found = self.call(
            OFFSET_FETCH,
            2,
            group_id=group,
            topics=[{"name": topic, "partition_indexes": (partition,)}],
        )
        _check(found.error_code)
        answer = found.topics[0].partitions[0]
        _check(answer.error_code)
        return int(answer.committed_offset)

    def all_committed(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets in `topics` (name -> partitions). Raises Refused."""
        asked = [
            {"name": name, "partition_indexes": tuple(range(count))}
            for name, count in topics.items()
        ]
        found = self.call(OFFSET_FETCH, 2, group_id=group, topics=asked)
        _check(found.error_code)
        committed = {}
        for topic in found.topics:
            for partition in topic.partitions:
                _check(partition.error_code)
                committed[topic.name, partition.partition_index] = int(partition.committed_offset)
        return committed

    def delete_topic(self, name: str) -> None:
        """Raises Refused."""
        done = self.call(DELETE_TOPICS, 1, topic_names=(name,), timeout=5000)
        _check(done.responses[0].error_code)

    def find_coordinator(self, group: str) -> None:
        """Find the group's coordinator, which creates the internal topic. Raises Refused."""
        _check(self.call(FIND_COORDINATOR, 0, key=group).error_code)


_request_schema = cache(load_request_schema)
response_schema = cache(load_response_schema)
"""Load kio's class; uncached, this goes through the importer each time."""
_hints_of = cache(typing.get_type_hints)  # half of the work of a request
_fields_of = cache(dataclasses.fields)


def _check(code: Any) -> None:
    if int(code):
        raise Refused(int(code))


def _least(hint: Any) -> Any:
    """Return the smallest value of a type."""
    if typing.get_origin(hint) in {typing.Union, UnionType}:
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(0)
    kind = next(kind for kind in (bool, int, float, str, bytes) if issubclass(hint, kind))
    return kind()


def build_entity(cls: Any, values: dict[str, Any]) -> Any:
    """Build an entity of kio's class `cls`; omitted fields get their default or smallest value."""
    hints = _hints_of(cls)
    arguments: dict[str, Any] = {}
    for field in _fields_of(cls):
        hint = hints[field.name]
        if field.name not in values:
            if field.default is dataclasses.MISSING:
                arguments[field.name] = _least(hint)
            continue
        value = values[field.name]
        kind = field.metadata.get("kafka_type")
        if kind in {"timedelta_i32", "timedelta_i64"}:
            value = datetime.timedelta(milliseconds=value)
        elif kind == "datetime_i64":
            value = None if value < 0 else _EPOCH + datetime.timedelta(milliseconds=value)
        elif kind == "error_code":
            value = ErrorCode(value)
        elif value is not None and kind is None:
            if typing.get_origin(hint) in {typing.Union, UnionType}:
                hint = next(part for part in typing.get_args(hint) if part is not NoneType)
            if typing.get_origin(hint) is tuple:
                inner = typing.get_args(hint)[0]
                value = tuple(build_entity(inner, item) for item in value)
            else:
                value = build_entity(hint, value)
        arguments[field.name] = value
    return cls(**arguments)
