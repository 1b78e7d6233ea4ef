"""What ordinary clients must not do: act as a replica or another producer, or change internal
topics.

Invariants: as in `names`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from headrace.records.batch import CONTROL, TRANSACTIONAL
from headrace.records.codec import Record, encode_batch
from headrace_verify.kafka_wire import (
    DELETE_TOPICS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    PRODUCE,
)
from headrace_verify.security.asking import (
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    JOIN_GROUP,
    alter,
    ask,
    create,
    produce,
    read,
)

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

PLAIN = "rights"
INTERNAL = "__consumer_offsets"
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING = 22, 25, 27


def _batch(value: bytes = b"x", **options: Any) -> bytes:
    return encode_batch([Record(0, 1_700_000_000_000, None, value)], **options)


def _marked(attributes: int) -> bytes:
    data = bytearray(_batch(producer_id=5, producer_epoch=0, base_sequence=0))
    data[21:23] = struct.pack(">h", attributes)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def _end(abuse: Abuse, topic: str) -> int:
    part = {"partition_index": 0, "timestamp": -1}
    topics = [{"name": topic, "partitions": [part]}]
    found = ask(abuse, LIST_OFFSETS, 1, replica_id=-1, topics=topics)
    return -1 if found is None else int(found.topics[0].partitions[0].offset)


def a_client_that_says_it_is_a_replica_gets_what_clients_get(abuse: Abuse) -> None:
    create(abuse, PLAIN)
    produce(abuse, PLAIN, _batch())
    consumer = read(abuse, PLAIN)
    for replica_id in (0, 1, 5, -2, -3, 2**31 - 1, -(2**31)):
        found = read(abuse, PLAIN, replica_id)
        same = found is not None and consumer is not None and bool(found.records)
        abuse.expect(same, f"replica {replica_id} gets no records, or no response")
        if found is not None and consumer is not None:
            marks = (found.high_watermark, consumer.high_watermark)
            abuse.expect(marks[0] == marks[1], f"replica {replica_id}: high watermarks {marks}")
            is_same = bytes(found.records or b"") == bytes(consumer.records or b"")
            abuse.expect(is_same, f"replica {replica_id} sees other records than a consumer")
        part = {"partition_index": 0, "timestamp": -1}
        topics = [{"name": PLAIN, "partitions": [part]}]
        ends = ask(abuse, LIST_OFFSETS, 1, replica_id=replica_id, topics=topics)
        abuse.expect(ends is not None, f"ListOffsets as replica {replica_id}: no response")
    abuse.expect(produce(abuse, PLAIN, _batch()) == 0, "nobody can write behind false replicas")


def control_and_transactional_batches_of_anybody_are_refused(abuse: Abuse) -> None:
    create(abuse, PLAIN)
    end = _end(abuse, PLAIN)
    for attributes in (CONTROL, TRANSACTIONAL, CONTROL | TRANSACTIONAL):
        code = produce(abuse, PLAIN, _marked(attributes))
        abuse.expect(code not in {0, None}, f"attributes {attributes:#x}: code {code}")
    # After a good batch, and in another partition's entry: each is checked separately.
    parts = [
        {"name": PLAIN, "partition_data": [{"index": 0, "records": _batch()}]},
        {"name": PLAIN, "partition_data": [{"index": 0, "records": _marked(TRANSACTIONAL)}]},
    ]
    answer = ask(abuse, PRODUCE, 7, acks=-1, timeout=5000, topic_data=parts)
    codes = []
    if answer is not None:
        codes = [
            int(part.error_code) for topic in answer.responses for part in topic.partition_responses
        ]
    abuse.expect(codes[:1] == [0] and 0 not in codes[1:], f"a good and a marked batch: {codes}")
    abuse.expect(_end(abuse, PLAIN) == end + 1, "a marker batch is in the log")
    for attributes in (CONTROL, CONTROL | TRANSACTIONAL):
        part = {"index": 0, "records": _marked(attributes)}
        topics = [{"name": PLAIN, "partition_data": [part]}]
        answer = ask(abuse, PRODUCE, 7, transactional_id="t", acks=-1, topic_data=topics)
        refused = answer is None or int(answer.responses[0].partition_responses[0].error_code) != 0
        abuse.expect(refused, f"attributes {attributes:#x} in a transactional request are accepted")
    abuse.expect(_end(abuse, PLAIN) == end + 1, "a control batch is in the log")


def producers_do_not_pass_for_older_or_other_ones(abuse: Abuse) -> None:
    create(abuse, PLAIN)
    made = ask(abuse, INIT_PRODUCER_ID, 1, transaction_timeout=1000)
    number = 77 if made is None else int(made.producer_id)

    def code(epoch: int, sequence: int, of: int = number) -> int | None:
        data = _batch(producer_id=of, producer_epoch=epoch, base_sequence=sequence)
        return produce(abuse, PLAIN, data)

    abuse.expect(code(3, 0) == 0, "a producer's first batch is rejected")
    for epoch, sequence, what in (
        (2, 1, "an older epoch"),
        (-1, 1, "no epoch"),
        (3, 7, "a gap"),
        (3, 2**31 - 1, "the last sequence"),
        (3, -1, "no sequence"),
        (3, -(2**31), "a negative sequence"),
        (4, 5, "a new epoch that does not begin at 0"),
    ):
        found = code(epoch, sequence)
        abuse.expect(found not in {0, None}, f"{what}: code {found}")
    for of in (-2, -(2**63)):
        found = code(0, 0, of)
        abuse.expect(found not in {0, None}, f"producer {of}: code {found}")
    named = ask(abuse, INIT_PRODUCER_ID, 4, producer_id=number, producer_epoch=3)
    given = None if named is None else int(named.producer_id)
    abuse.expect(given != number, f"another client that names producer {number} gets it")
    abuse.expect(code(3, 1) == 0, "the producer itself is rejected after all that")


def _join(abuse: Abuse, group: str, member: str = "") -> Any | None:
    return ask(
        abuse,
        JOIN_GROUP,
        2,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=1_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )


def commits_of_other_generations_and_members_are_refused(abuse: Abuse) -> None:
    create(abuse, PLAIN)
    group = f"rights-{abuse.rng.randrange(1 << 30)}"
    ask(abuse, FIND_COORDINATOR, 0, key=group)
    joined = _join(abuse, group)
    for _ in range(40):
        if joined is None or int(joined.error_code) not in {14, 15, 16}:
            break
        abuse.pause(0.1)
        joined = _join(abuse, group)
    if joined is None or int(joined.error_code):
        abuse.expect(False, f"a client cannot join a group: {joined and int(joined.error_code)}")
        return
    generation, member = int(joined.generation_id), joined.member_id
    for number, who in (
        (generation - 1, member),
        (generation + 1, member),
        (-1, ""),
        (-1, member),
        (generation, "somebody"),
        (generation, ""),
        (2**31 - 1, member),
    ):
        part = {"partition_index": 0, "committed_offset": 999, "committed_metadata": None}
        done = ask(
            abuse,
            OFFSET_COMMIT,
            2,
            group_id=group,
            generation_id_or_member_epoch=number,
            member_id=who,
            retention_time=-1,
            topics=[{"name": PLAIN, "partitions": [part]}],
        )
        code = None if done is None else int(done.topics[0].partitions[0].error_code)
        is_refused = code in {ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING}
        whose = "the member" if who == member else repr(who)
        abuse.expect(is_refused, f"generation {number} of {whose}: code {code}")


def what_is_the_brokers_own_stays_so(abuse: Abuse) -> None:
    ask(abuse, FIND_COORDINATOR, 0, key="rights")
    end = _end(abuse, INTERNAL)
    found = {
        "written to": produce(abuse, INTERNAL, _batch()),
        "made again": create(abuse, INTERNAL),
        "set to forget": alter(abuse, "retention.ms", "1", INTERNAL),
        "set to delete": alter(abuse, "cleanup.policy", "delete", INTERNAL),
        "set to forget by default": alter(abuse, "cleanup.policy", None, INTERNAL, operation=1),
    }
    gone = ask(abuse, DELETE_TOPICS, 1, topic_names=(INTERNAL,), timeout=1000)
    found["deleted"] = None if gone is None else int(gone.responses[0].error_code)
    part = {"partition_index": 0, "offset": -1}
    cut = ask(
        abuse, DELETE_RECORDS, 0, topics=[{"name": INTERNAL, "partitions": [part]}], timeout=1000
    )
    if cut is not None:
        found["cut"] = int(cut.topics[0].partitions[0].error_code)
    more = ask(
        abuse,
        CREATE_PARTITIONS,
        0,
        topics=[{"name": INTERNAL, "count": 99, "assignments": None}],
        timeout=1000,
        validate_only=False,
    )
    if more is not None:
        found["given partitions"] = int(more.results[0].error_code)
    for what, code in found.items():
        abuse.expect(code not in {0, None}, f"{INTERNAL} is {what}: code {code}")
    abuse.expect(_end(abuse, INTERNAL) >= end, f"{INTERNAL} is shorter than before")
