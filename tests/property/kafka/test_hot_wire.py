"""Produce and Fetch as written by hand, against `kio`'s schemas, in every version."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headrace.kafka.apis import APIS, FETCH, PRODUCE
from headrace.kafka.wire.fetch import FetchResult, read_fetch, write_fetch
from headrace.kafka.wire.leader_hints import LeaderHint
from headrace.kafka.wire.primitives import STRUCT_ERROR, FrameInvalid
from headrace.kafka.wire.produce import (
    ProduceResult,
    frame_around_one,
    read_one,
    read_produce,
    write_one,
    write_produce,
)
from headrace_verify.kafka_wire import build_entity

if TYPE_CHECKING:
    import uuid

PRODUCE_VERSIONS = range(3, APIS[PRODUCE].version_max + 1)
FETCH_VERSIONS = range(4, APIS[FETCH].version_max + 1)
TOPICS = st.lists(
    st.tuples(
        st.uuids(version=4),
        st.text("abc-_.", min_size=1, max_size=200),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4),
    ),
    max_size=4,
    unique_by=(lambda t: t[0], lambda t: t[1]),
)


def encode(schema: type, values: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, build_entity(schema, values))
    return buffer.getvalue()


def topic_key(version: int, first_with_ids: int, topic_id: uuid.UUID, name: str) -> bytes:
    return topic_id.bytes if version >= first_with_ids else name.encode()


HINTS = st.one_of(
    st.none(),
    st.builds(
        LeaderHint,
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.sampled_from(["localhost", "10.0.0.1"]),
        st.integers(1, 65_535),
        st.sampled_from([None, "rack-1"]),
    ),
)


def check_hints(partitions: list[Any], answer: Any, hint: LeaderHint | None) -> None:
    """The leader stands in each partition, and where it is reached once at the end."""
    for partition in partitions:
        leader = partition.current_leader
        if hint is not None:
            assert (leader.leader_id, leader.leader_epoch) == (hint.broker_id, hint.leader_epoch)
        else:
            assert leader is None or leader.leader_id == -1
    told = [(e.node_id, e.host, e.port, e.rack) for e in answer.node_endpoints]
    named = hint is not None and bool(partitions)
    assert told == ([(hint.broker_id, hint.host, hint.port, hint.rack)] if named else [])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=40, deadline=None)
@given(TOPICS, st.binary(max_size=400), st.sampled_from([-1, 0, 1]), st.integers(0, 60_000))
def test_a_produce_request_is_read_as_its_schema_says(
    version: int, topics: list[Any], records: bytes, acks: int, timeout_ms: int
) -> None:
    data = encode(
        load_request_schema(PRODUCE, version),
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": timeout_ms,
            "topic_data": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_data": [{"index": n, "records": records} for n in numbers],
                }
                for topic_id, name, numbers in topics
            ],
        },
    )
    request = read_produce(memoryview(b"ab" + data), 2, version)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (acks, timeout_ms, None)
    assert [(p.topic, p.partition, bytes(p.records or b"")) for p in request.partitions] == [
        (topic_key(version, 13, topic_id, name), number, records)
        for topic_id, name, numbers in topics
        for number in numbers
    ]
    for cut in range(0, len(data), max(1, len(data) // 25)):
        with pytest.raises((FrameInvalid, STRUCT_ERROR, IndexError)):
            read_produce(memoryview(data[:cut]), 0, version)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=30, deadline=None)
@given(TOPICS, st.integers(-1, 2**40), st.sampled_from([0, 2, 45]), HINTS)
def test_a_produce_answer_is_what_its_schema_reads(
    version: int, topics: list[Any], offset: int, error_code: int, hint: LeaderHint | None
) -> None:
    message = "why" if error_code else None
    results = [
        ProduceResult(topic_key(version, 13, i, name), n, error_code, offset, -1, 3, message, hint)
        for i, name, numbers in topics
        for n in numbers
    ]
    body = write_produce(version, results)
    answer, size = entity_reader(load_response_schema(PRODUCE, version))(body, 0)
    assert size == len(body)
    seen = [
        (p.index, int(p.error_code), p.base_offset, getattr(p, "error_message", message))
        for topic in answer.responses
        for p in topic.partition_responses
    ]
    assert seen == [(r.partition, r.error_code, offset, message) for r in results]
    assert len(answer.responses) == len(topics)
    if version >= 10:
        partitions = [p for topic in answer.responses for p in topic.partition_responses]
        check_hints(partitions, answer, hint)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=40, deadline=None)
@given(TOPICS, TOPICS, st.integers(0, 2**50), st.integers(-1, 2**31 - 1))
def test_a_fetch_request_is_read_as_its_schema_says(
    version: int, topics: list[Any], forgotten: list[Any], offset: int, epoch: int
) -> None:
    data = encode(
        load_request_schema(FETCH, version),
        {
            "replica_id": -1,
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 1000,
            "isolation_level": 1,
            "session_id": 5,
            "session_epoch": 6,
            "topics": [
                {
                    "topic": name,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition": n,
                            "current_leader_epoch": epoch,
                            "fetch_offset": offset,
                            "partition_max_bytes": 77,
                        }
                        for n in numbers
                    ],
                }
                for topic_id, name, numbers in topics
            ],
            "forgotten_topics_data": [
                {"topic": name, "topic_id": topic_id, "partitions": numbers}
                for topic_id, name, numbers in forgotten
            ],
            "rack_id": "",
        },
    )
    request = read_fetch(memoryview(data), 0, version)
    assert request[:4] == (500, 1, 1000, 1)
    known_epoch = epoch if version >= 9 else -1
    assert [tuple(p) for p in request.partitions] == [
        (topic_key(version, 13, i, name), n, known_epoch, offset, 77)
        for i, name, numbers in topics
        for n in numbers
    ]
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (5, 6)
        assert request.forgotten == [
            (topic_key(version, 13, i, name), n) for i, name, numbers in forgotten for n in numbers
        ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=30, deadline=None)
@given(
    TOPICS,
    st.binary(max_size=300),
    st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
    st.sampled_from([0, 1, 71]),
    st.none() | st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=200),
    HINTS,
)
def test_a_fetch_answer_is_what_its_schema_reads(
    version: int,
    topics: list[Any],
    records: bytes,
    marks: tuple[int, int],
    error_code: int,
    aborted: list[tuple[int, int]] | None,
    hint: LeaderHint | None,
) -> None:
    results = [
        FetchResult(
            topic_key(version, 13, i, name), n, error_code, *marks, 4, records, aborted, hint
        )
        for i, name, numbers in topics
        for n in numbers
    ]
    body = b"".join(write_fetch(version, 0, 9, results))
    answer, size = entity_reader(load_response_schema(FETCH, version))(body, 0)
    assert size == len(body)
    seen = [
        (p.partition_index, int(p.error_code), p.high_watermark, p.last_stable_offset, p.records)
        for topic in answer.responses
        for p in topic.partitions
    ]
    assert seen == [(r.partition, error_code, *marks, records) for r in results]
    for topic in answer.responses:
        for part in topic.partitions:
            found = [(one.first_offset, one.producer_id) for one in part.aborted_transactions]
            assert found == (aborted or [])
    assert getattr(answer, "session_id", 9) == 9
    partitions = [p for topic in answer.responses for p in topic.partitions]
    if version >= 16:
        check_hints(partitions, answer, hint)
    elif version >= 12:  # there is no place for the address: no leader either
        assert all(p.current_leader is None or p.current_leader.leader_id == -1 for p in partitions)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(list(PRODUCE_VERSIONS)))
def test_noise_never_does_more_than_raise(noise: bytes, version: int) -> None:
    for read, number in ((read_produce, version), (read_fetch, version + 1)):
        try:
            read(memoryview(noise), 0, number)
        except (FrameInvalid, STRUCT_ERROR, IndexError):
            continue


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=40, deadline=None)
@given(TOPICS, st.binary(max_size=400), st.sampled_from([None, "tx"]), st.binary(max_size=3))
def test_the_short_way_reads_what_the_long_way_reads_or_nothing(
    version: int, topics: list[Any], records: bytes, transactional_id: str | None, extra: bytes
) -> None:
    data = encode(
        load_request_schema(PRODUCE, version),
        {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": 5,
            "topic_data": [
                {
                    "name": name,
                    "topic_id": topic_id,
                    "partition_data": [{"index": n, "records": records} for n in numbers],
                }
                for topic_id, name, numbers in topics
            ],
        },
    )
    is_plain = len(topics) == 1 and len(topics[0][2]) == 1 and transactional_id is None
    try:
        one = read_one(memoryview(b"x" + data + extra), 1, version)
    except (FrameInvalid, STRUCT_ERROR, IndexError):
        assert not is_plain
        return
    if is_plain and not extra and len(topics[0][1]) < 120:
        assert one is not None
    if one is not None:
        assert is_plain
        assert not extra
        part = read_produce(memoryview(data), 0, version).partitions[0]
        assert (one[1], one[2], bytes(one[3])) == (part.topic, part.partition, records)


@pytest.mark.parametrize("version", range(5, 14))
@settings(max_examples=20, deadline=None)
@given(TOPICS, st.integers(0, 2**50))
def test_the_short_answer_is_the_long_one(version: int, topics: list[Any], offset: int) -> None:
    for topic_id, name, numbers in topics:
        topic = topic_key(version, 13, topic_id, name)
        result = ProduceResult(topic, numbers[0], 0, offset, 4, 3, None)
        body = write_produce(version, [result])
        head = b"\x00" if version >= 9 else b""
        answer = write_one(frame_around_one(version, topic, numbers[0]), 9, offset, 4, 3)
        assert answer[4:] == b"\x00\x00\x00\x09" + head + body
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
