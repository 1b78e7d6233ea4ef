"""A log of offsets read back quickly gives the state that each record by itself gives."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_records import CONSUMER
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    GroupStored,
    OffsetRemoved,
    OffsetStored,
    encode,
)
from headrace.coordination.kit.machine import EachRecord, InTransaction, TransactionEnded
from headrace.coordination.member_groups.records import MemberRecordRemoved

GROUPS = st.sampled_from(["a", "b", "ab", "\u00e9"])
TOPICS = st.sampled_from(["t", "u", "tt"])
PARTITIONS = st.integers(0, 3) | st.just((1 << 31) - 1)
offsets = st.builds(
    OffsetStored,
    GROUPS,
    TOPICS,
    PARTITIONS,
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, 5),
    st.sampled_from(["", "", "", "note"]),
    st.integers(0, 1 << 50),
    st.sampled_from([None, UUID(int=1), UUID(int=2)]),
    st.sampled_from([False, False, False, True]),
)
others = st.one_of(
    st.builds(OffsetRemoved, GROUPS, TOPICS, PARTITIONS),
    st.builds(GroupRemoved, GROUPS),
    st.builds(
        GroupStored,
        GROUPS,
        st.just("consumer"),
        st.integers(1, 3),
        st.none(),
        st.none(),
        st.just(7),
        st.just(()),
    ),
)
machine = GroupMachine(GroupConfig())
pairs = st.one_of(
    offsets.map(encode),
    offsets.map(encode),
    offsets.map(encode),
    others.map(encode),
    GROUPS.map(lambda g: machine.encode(MemberRecordRemoved(CONSUMER.group_key, g))),
    st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=45)),
    offsets.flatmap(
        lambda o: st.tuples(st.just(encode(o)[0]), st.binary(min_size=42, max_size=42))
    ),
)
steps = st.one_of(
    st.lists(pairs, max_size=30),
    st.builds(lambda o, p: (InTransaction(p, 0), *encode(o)), offsets, st.integers(0, 1)),
    st.builds(TransactionEnded, st.integers(0, 1), st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=12))
def test_the_quick_replay_and_the_plain_one_give_one_state(log):
    quick, plain = GroupMachine(GroupConfig()), GroupMachine(GroupConfig())
    for found in (quick, plain):
        replay = found.replayer() if found is quick else EachRecord(found)
        for step in log:
            if isinstance(step, list):
                replay(step)
                continue
            record = (
                found.ended(step)
                if isinstance(step, TransactionEnded)
                else found.decode_pending(*step)
            )
            if record is not None:
                found.apply(record)
                replay = found.replayer() if found is quick else EachRecord(found)
    assert vars(quick.state) == vars(plain.state)
    assert quick.skipped_count == plain.skipped_count
