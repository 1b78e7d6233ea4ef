"""Share groups by example: what a stale command, a torn snapshot and a lost answer must not do."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.coordination.kit.topic_view import TopicShape
from headrace.coordination.shares import membership as share_membership
from headrace.coordination.shares.commands import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AcquireCommand,
    LearnCommand,
    ListParkedCommand,
    OpenShareGroupCommand,
    ParkKeyCommand,
    PeekCommand,
    RecordOrder,
    ReleaseKeyCommand,
    SettleCommand,
    Settlement,
    ShareTickCommand,
    StatesCommand,
    TakeBackCommand,
)
from headrace.coordination.shares.config import ShareConfig
from headrace.coordination.shares.ended import RANGES_MAX
from headrace.coordination.shares.membership import ShareHeartbeat, ShareMembership
from headrace.coordination.shares.parking import PARKED_BYTES_MAX, PARKED_KEYS_MAX
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.errors import (
    DeliveryExpired,
    DeliveryFinished,
    DeliveryLost,
    DeliverySettled,
    DeliveryTaken,
    DeliveryUnknown,
    GroupFull,
    RecordStateInvalid,
    RequestInvalid,
)
from headrace.records.identifiers import TOPIC_NAME_SIZE_MAX

SESSION_MS = 45_000


def ask(machine, command, now_ms=0):
    decision = machine.decide(command, now_ms)
    for record in decision.records:
        machine.apply(record)
    machine.validate()
    return decision.reply


def opened(*groups, **config):
    machine = ShareMachine()
    for group_id in groups or ("g",):
        ask(machine, OpenShareGroupCommand(group_id, 100, ShareConfig(**config)))
    return machine


def test_rows_that_were_read_for_a_state_that_is_past_finish_nothing():
    machine = opened(is_ordered=True)
    ask(machine, LearnCommand("g", 500, [RecordOrder(500, 1)], 600))
    assert machine.groups["g"].window.start == 100


def test_a_record_that_ended_beside_an_acknowledged_one_is_not_called_acknowledged():
    machine = opened()
    ask(machine, AcquireCommand("g", "a", [(100, 102)], 10))
    for offset, kind in ((101, ACCEPT), (102, GAP)):  # 100 keeps the start where it is
        ask(machine, SettleCommand("g", "a", [Settlement(offset, offset, kind)]))
    states = ask(machine, StatesCommand(range(99, 104))).states
    found = [one.state for (one,) in states]
    assert found == ["finished", "acquired", "finished", "finished", "waiting"]
    reasons = [str(ask(machine, TakeBackCommand(n, is_dry_run=False)).error) for n in (100, 102)]
    assert reasons == [
        "it was delivered to group g (acquired)",
        "it was delivered to group g, or left out (finished)",
    ]


def test_a_parked_key_with_many_records_holds_up_no_other_key():
    machine = opened(is_ordered=True, unfinished_max=10)
    assert ask(machine, ParkKeyCommand("g", b"hot", 1)).error is None
    delivered = 0

    def learn(rows_from):
        rows_end = min(rows_from + 50, 1_100)
        rows = [RecordOrder(n, 1 if n % 10 else 2) for n in range(rows_from, rows_end)]
        ask(machine, LearnCommand("g", rows_from, rows, rows_end))

    while delivered < 100:
        peeked = ask(machine, PeekCommand("g", 1_100, 10))
        for rows_from in (peeked.rows_from, peeked.again_from):
            if rows_from >= 0:
                learn(rows_from)
        got = ask(machine, AcquireCommand("g", "a", [(100, 1_099)], 10)).acquired
        assert got or max(peeked.rows_from, peeked.again_from) >= 0, "the group stands still"
        for first, last, _ in got:
            delivered += last - first + 1
            ask(machine, SettleCommand("g", "a", [Settlement(first, last, ACCEPT)]))
    while (rows_from := ask(machine, PeekCommand("g", 1_100, 10)).rows_from) >= 0:
        learn(rows_from)
    assert delivered == 100
    assert ask(machine, ListParkedCommand("g")).keys[0].records == 900
    assert ask(machine, ReleaseKeyCommand("g", b"hot")).error is None
    first = ask(machine, AcquireCommand("g", "a", [(100, 1_099)], 10)).acquired
    assert [one[:2] for one in first] == [(101, 101)], "the key goes on where it stood"


def test_two_keys_of_one_hash_are_parked_until_both_are_released():
    machine = opened(is_ordered=True)
    for key in (b"a", b"b"):
        ask(machine, ParkKeyCommand("g", key, 7))
    ask(machine, LearnCommand("g", 100, [RecordOrder(100, 7)], 101))
    for key, count in ((b"a", 0), (b"b", 1)):
        ask(machine, ReleaseKeyCommand("g", key))
        got = ask(machine, AcquireCommand("g", "a", [(100, 100)], 10)).acquired
        assert len(got) == count


def test_a_parked_key_whose_hash_is_that_of_the_partition_order_holds_nothing_up_in_it():
    machine = opened(is_ordered=True, unfinished_max=10)
    assert ask(machine, ParkKeyCommand("g", b"", 0)).error is None
    ask(machine, OpenShareGroupCommand("g", 100, ShareConfig(is_serial=True, unfinished_max=10)))
    ask(machine, LearnCommand("g", 100, [RecordOrder(n, 0) for n in range(100, 110)], 110))
    assert machine.groups["g"].room() == 0
    got = ask(machine, AcquireCommand("g", "a", [(100, 109)], 10)).acquired
    assert [one[:2] for one in got] == [(100, 100)]


def test_keys_are_parked_in_groups_that_keep_their_order_alone_and_so_many_at_most():
    machine = opened()
    assert isinstance(ask(machine, ParkKeyCommand("g", b"a", 1)).error, RecordStateInvalid)
    machine = opened(is_ordered=True)
    for number in range(PARKED_KEYS_MAX):
        assert ask(machine, ParkKeyCommand("g", b"%d" % number, number)).error is None
    assert isinstance(ask(machine, ParkKeyCommand("g", b"more", 1)).error, RecordStateInvalid)
    assert ask(machine, ParkKeyCommand("g", b"1", 1)).error is None, "it is parked already"
    looked = ask(machine, ListParkedCommand("g", [(b"1", 1)]))
    assert [one.key for one in looked.keys] == [b"1"], "a dry run of the same"
    refused = ask(machine, ListParkedCommand("g", [(b"1", 1), (b"more", 1)]))
    assert isinstance(refused.error, RecordStateInvalid)


def test_parked_keys_have_so_many_bytes_at_most():
    machine = opened(is_ordered=True)
    keys = [b"%d" % number * 4_096 for number in range(PARKED_BYTES_MAX // 4_096)]
    for number, key in enumerate(keys[:9]):
        assert ask(machine, ParkKeyCommand("g", key, number)).error is None
    rest = b"x" * (PARKED_BYTES_MAX - 9 * 4_096)
    for command in (
        ParkKeyCommand("g", rest + b"x", 9),
        ListParkedCommand("g", [(rest + b"x", 9)]),
    ):
        assert isinstance(ask(machine, command).error, RecordStateInvalid)
    assert ask(machine, ParkKeyCommand("g", rest, 9)).error is None
    assert isinstance(ask(machine, ParkKeyCommand("g", b"y", 10)).error, RecordStateInvalid)
    assert ask(machine, ParkKeyCommand("g", rest, 9)).error is None, "it is parked already"


def test_a_snapshot_that_was_cut_after_a_groups_first_record_loses_nothing():
    machine = opened()
    ask(machine, AcquireCommand("g", "a", [(100, 199)], 100))
    ask(machine, SettleCommand("g", "a", [Settlement(101, 199, ACCEPT)]))
    before = repr(list(machine.groups["g"].window))
    machine.apply(machine.state_records()[0])
    assert repr(list(machine.groups["g"].window)) == before


def test_one_lock_that_ends_late_keeps_no_memory_of_those_after_it():
    machine = opened()
    ask(machine, AcquireCommand("g", "late", [(100, 100)], 1, True, 43_200_000))
    for offset in range(101, 3_000):
        ask(machine, AcquireCommand("g", "a", [(offset, offset)], 1))
        ask(machine, SettleCommand("g", "a", [Settlement(offset, offset, RENEW)]))
        ask(machine, SettleCommand("g", "a", [Settlement(offset, offset, ACCEPT)]))
    group = machine.groups["g"]
    assert len(group._locks) < 600
    assert len(machine._deadlines) < 600


def test_a_record_that_waits_for_long_keeps_no_memory_of_those_after_it():
    machine = opened(lock_ms=1_000)
    ask(machine, AcquireCommand("g", "a", [(100, 100)], 1))
    ask(machine, SettleCommand("g", "a", [Settlement(100, 100, RELEASE, 30_000_000_000)]))
    now_ms = 0
    for offset in range(101, 3_000):
        ask(machine, AcquireCommand("g", "a", [(offset, offset)], 1), now_ms)
        now_ms += 2_000
        ask(machine, ShareTickCommand(), now_ms)
    assert len(machine._deadlines) < 600


TOPICS = {"t": TopicShape(UUID(int=1), 4)}


def beat(membership, member, epoch, subscribed=("t",), group="g"):
    heartbeat = ShareHeartbeat(group, member, epoch, subscribed, None, "client", "/host")
    return membership.heartbeat(heartbeat, TOPICS, SESSION_MS, 0)


def test_a_member_that_sends_everything_again_gets_its_assignment_again():
    membership = ShareMembership()
    first = beat(membership, "a", 0)
    beat(membership, "b", 0)
    lost = beat(membership, "a", first.member_epoch, None)
    assert lost.assignment is not None
    again = beat(membership, "a", first.member_epoch)
    assert again.assignment == lost.assignment
    quiet = beat(membership, "a", again.member_epoch, None)
    assert quiet.assignment is None


def test_all_partitions_are_assigned_and_every_member_has_one():
    membership = ShareMembership()
    members = [f"m{number}" for number in range(6)]
    for member in members:
        beat(membership, member, 0)
    group = membership.groups["g"]
    assigned = [set(group.members[member].assigned) for member in members]
    assert set().union(*assigned) == {(UUID(int=1), number) for number in range(4)}
    assert all(assigned)


def test_a_member_keeps_no_name_that_no_topic_can_have():
    """A heartbeat may have a thousand of 8 KiB."""
    membership = ShareMembership()
    longest = "\u00abtenant\u00bb" + "n" * TOPIC_NAME_SIZE_MAX
    beat(membership, "a", 0, [longest])
    with pytest.raises(RequestInvalid, match="no topic can have"):
        beat(membership, "b", 0, [longest + "n"])
    heartbeat = ShareHeartbeat("g", "c", 0, ["t"], "r" * 10_000, "client", "/host")
    with pytest.raises(RequestInvalid, match="rack"):
        membership.heartbeat(heartbeat, TOPICS, SESSION_MS, 0)
    assert [*membership.groups["g"].members] == ["a"]


def test_the_topics_of_all_members_of_a_group_are_bounded(monkeypatch):
    monkeypatch.setattr(share_membership, "SUBSCRIPTIONS_MAX", 10)
    membership = ShareMembership()
    for member in ("a", "b"):
        beat(membership, member, 0, [f"{member}{number}" for number in range(5)])
    with pytest.raises(GroupFull, match="10 topics"):
        beat(membership, "c", 0)
    with pytest.raises(GroupFull, match="10 topics"):
        beat(membership, "b", 0, [f"b{number}" for number in range(6)])
    beat(membership, "b", 0, ["b0", "t"])
    beat(membership, "c", 0)
    group = membership.groups["g"]
    assert group.subscriptions == 8
    assert [len(group.members[one].assigned) for one in "abc"] == [0, 2, 2]


def test_a_heartbeat_looks_at_each_topic_of_a_group_once():
    """With a thousand members it is the most frequent request."""

    class Counted(dict):
        looked = 0

        def __contains__(self, name):
            Counted.looked += 1
            return super().__contains__(name)

    membership, topics = ShareMembership(), Counted(TOPICS)
    names = tuple(LookedAt(f"absent{number}") for number in range(50))

    def send(member, epoch, subscribed):
        heartbeat = ShareHeartbeat("g", member, epoch, subscribed, None, "client", "/host")
        return membership.heartbeat(heartbeat, topics, SESSION_MS, 0)

    for number in range(20):
        epoch = send(f"m{number}", 0, names).member_epoch
    Counted.looked, LookedAt.hashed = 0, 0
    send("m19", epoch, None)
    assert Counted.looked == 50
    assert LookedAt.hashed <= 200, "not the topics of each member"


class LookedAt(str):
    """A name that counts how often it is looked up."""

    __slots__ = ()
    hashed = 0

    def __hash__(self):
        LookedAt.hashed += 1
        return super().__hash__()


def test_groups_without_members_leave_nothing():
    membership = ShareMembership()
    with pytest.raises(RequestInvalid):
        beat(membership, "a", 0, None, "refused")
    beat(membership, "a", 0)
    beat(membership, "a", -1)
    beat(membership, "b", 0, group="silent")
    assert membership.expire(TOPICS, SESSION_MS) == [("silent", "b")]
    assert not membership.groups


def refusal(machine, member, first, last, kind=ACCEPT, now_ms=0):
    settlements = [Settlement(first, last, kind)]
    command = SettleCommand("g", member, settlements, is_atomic=False)
    return ask(machine, command, now_ms).errors[0]


def test_a_repeated_settlement_is_distinguished_from_one_of_another_delivery():
    machine = opened()
    ask(machine, AcquireCommand("g", "a", [(100, 103)], 4))
    assert type(refusal(machine, "b", 100, 100)) is DeliveryTaken
    assert type(refusal(machine, "a", 104, 104)) is DeliveryUnknown
    assert refusal(machine, "a", 102, 102) is None
    assert type(refusal(machine, "a", 102, 102)) is DeliverySettled
    assert type(refusal(machine, "a", 102, 102, REJECT)) is DeliveryFinished
    assert type(refusal(machine, "b", 102, 102)) is DeliveryFinished
    assert refusal(machine, "a", 100, 101) is None
    assert type(refusal(machine, "a", 100, 100)) is DeliverySettled, "before the start by now"
    assert type(refusal(machine, "b", 100, 100)) is DeliveryFinished
    assert type(refusal(machine, "a", 101, 103)) is DeliveryFinished
    assert refusal(machine, "a", 103, 103) is None
    assert type(refusal(machine, "a", 100, 102)) is DeliveryFinished, "not in one piece"
    assert type(refusal(machine, "a", 102, 103, now_ms=30_000)) is DeliveryFinished, "forgotten"


def test_a_delivery_that_was_given_back_says_so_even_when_another_one_holds_the_record():
    machine = opened()
    ask(machine, AcquireCommand("g", "a", [(100, 100)], 1))
    assert refusal(machine, "a", 100, 100, RELEASE) is None
    assert type(refusal(machine, "a", 100, 100, ACCEPT)) is DeliveryLost
    ask(machine, AcquireCommand("g", "b", [(100, 100)], 1))
    assert type(refusal(machine, "a", 100, 100, RELEASE)) is DeliverySettled
    assert type(refusal(machine, "a", 100, 100, ACCEPT)) is DeliveryTaken


def test_an_expired_lock_is_distinguished_from_a_record_of_another_delivery():
    machine = opened(lock_ms=1_000)
    ask(machine, AcquireCommand("g", "a", [(100, 101)], 2))
    assert type(refusal(machine, "a", 100, 100, now_ms=1_000)) is DeliveryExpired, "no tick yet"
    ask(machine, ShareTickCommand(), 1_000)
    assert type(refusal(machine, "a", 100, 100, now_ms=1_001)) is DeliveryExpired
    ask(machine, AcquireCommand("g", "b", [(100, 101)], 2), 1_001)
    assert type(refusal(machine, "a", 100, 100, now_ms=1_002)) is DeliveryExpired
    assert type(refusal(machine, "a", 100, 100, now_ms=2_500)) is DeliveryTaken, "forgotten"


def test_ended_deliveries_are_remembered_in_bounded_memory():
    machine = opened()
    ended = machine.groups["g"].ended
    for offset in range(100, 100 + 3 * RANGES_MAX):
        member = f"m{offset}"
        ask(machine, AcquireCommand("g", member, [(offset, offset)], 1))
        assert refusal(machine, member, offset, offset) is None
        assert len(ended) <= RANGES_MAX
    assert type(refusal(machine, member, offset, offset)) is DeliverySettled
    assert type(refusal(machine, "m100", 100, 100)) is DeliveryFinished
    for place in range(3 * RANGES_MAX):  # one member, as Kafka's are, and no two are neighbours
        offset = 100 + 3 * RANGES_MAX + place
        ask(machine, AcquireCommand("g", "one", [(offset, offset)], 1))
        assert refusal(machine, "one", offset, offset, REJECT if place % 2 else ACCEPT) is None
        assert len(ended) <= RANGES_MAX
    ask(machine, AcquireCommand("g", "next", [(offset + 1, offset + 1)], 1), 60_000)
    assert refusal(machine, "next", offset + 1, offset + 1, now_ms=60_000) is None
    assert len(ended) == 1


def test_a_record_that_is_taken_back_far_ahead_lifts_no_limit_of_its_group():
    machine = opened(unfinished_max=50)
    assert ask(machine, TakeBackCommand(5_000, is_dry_run=False)).error is None
    window = machine.groups["g"].window
    for member in ("a", "b"):
        ask(machine, AcquireCommand("g", member, [(100, 9_999)], 30, is_strict=True))
        peeked = ask(machine, PeekCommand("g", 10_000, 500))
        offered = sum(last - first + 1 for first, last in peeked.ranges)
        assert offered == 50 - window.acquired_records
    assert window.acquired_records == 50
    assert peeked.wait_ms > 0, "a lock that ends makes room"
    ask(machine, SettleCommand("g", "a", [Settlement(100, 129, ACCEPT)]))
    ask(machine, SettleCommand("g", "b", [Settlement(130, 149, ACCEPT)]))
    delivered = 50
    while got := ask(machine, AcquireCommand("g", "c", [(100, 9_999)], 500)).acquired:
        assert window.acquired_records <= 50
        for first, last, _ in got:
            delivered += last - first + 1
            ask(machine, SettleCommand("g", "c", [Settlement(first, last, ACCEPT)]))
        if delivered > 5_500:
            break
    assert window.start > 5_000, "all others are delivered, and then those after it"


def test_a_group_in_partition_order_knows_few_rows_before_one_that_is_taken_back():
    machine = opened(is_serial=True, unfinished_max=10)
    ask(machine, TakeBackCommand(500, is_dry_run=False))
    group = machine.groups["g"]
    delivered = []
    while len(delivered) < 450:
        while (rows_from := ask(machine, PeekCommand("g", 1_000, 10)).rows_from) >= 0:
            rows = [RecordOrder(n, 0) for n in range(rows_from, rows_from + 5)]
            ask(machine, LearnCommand("g", rows_from, rows, rows_from + 5))
            assert group.keyed.rows_count < 10 + 5
        got = ask(machine, AcquireCommand("g", "a", [(100, 999)], 10)).acquired
        assert got, "the group stands still"
        for first, last, _ in got:
            delivered += range(first, last + 1)
            ask(machine, SettleCommand("g", "a", [Settlement(first, last, ACCEPT)]))
    assert delivered == [n for n in range(100, 551) if n != 500][: len(delivered)]
