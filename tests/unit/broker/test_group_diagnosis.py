"""The verdict on a slow group: what two looks at it show."""

from __future__ import annotations

from headrace.broker.services.group_diagnosis import Look, Position, diagnose


def look(at_s: int, offsets: dict[int, tuple[int, int]], **more) -> Look:
    """A group at one time; `offsets`: (offset, end) by partition."""
    given = {"state": "Stable", "group_type": "classic", "members": ["one"], **more}
    positions = {("t", number): Position(*one) for number, one in offsets.items()}
    return Look(at_s * 1_000, positions=positions, **given)


def kinds(before: Look, now: Look) -> list[str]:
    found = diagnose(before, now)
    for one in found:
        assert one.sentence.endswith(".")
        assert one.next_step
        assert one.evidence
    return [one.kind for one in found]


def test_a_group_without_lag_is_not_slow():
    now = look(10, {0: (5, 5)})
    assert kinds(look(0, {0: (1, 5)}), now) == ["no_lag"]


def test_a_group_without_members_is_not_consumed():
    looks = [look(at, {0: (0, 10)}, members=[], state="Empty") for at in (0, 10)]
    assert kinds(*looks) == ["no_members"]


def test_a_group_that_rebalances_says_so():
    looks = [look(at, {0: (0, 10)}, state="PreparingRebalance") for at in (0, 10)]
    assert kinds(*looks)[0] == "rebalancing"


def test_members_beyond_the_partitions_are_idle():
    found = diagnose(look(0, {0: (0, 10)}), look(10, {0: (5, 20)}, members=["a", "b", "c"]))
    assert found[0].kind == "idle_members"
    assert found[0].evidence == {"members": 3, "partitions": 1}


def test_rates_decide_between_catching_up_and_falling_behind():
    slow = diagnose(look(0, {0: (0, 100)}), look(10, {0: (50, 300)}))[-1]
    assert slow.kind == "too_slow"
    assert slow.evidence == {"lag": 250, "produced_per_s": 20.0, "consumed_per_s": 5.0}
    fast = diagnose(look(0, {0: (0, 100)}), look(10, {0: (60, 110)}))[-1]
    assert fast.kind == "catching_up"
    assert fast.evidence["caught_up_in_s"] == 10
    assert kinds(look(0, {0: (0, 100)}), look(10, {0: (0, 100)}))[-1] == "stopped"


def test_one_partition_with_most_of_the_lag_is_named():
    before = look(0, dict.fromkeys(range(4), (0, 100)))
    now = look(10, {0: (90, 100), 1: (90, 100), 2: (10, 500), 3: (90, 100)})
    found = diagnose(before, now)
    assert found[0].kind == "hot_partition"
    assert found[0].evidence["partition"] == "t-2"


def test_a_partition_that_stands_still_beside_others_is_named():
    before = look(0, {0: (0, 100), 1: (7, 100)})
    now = look(10, {0: (50, 100), 1: (7, 100)})
    found = {one.kind: one for one in diagnose(before, now)}
    assert found["stopped_partitions"].evidence["partitions"] == ["t-1"]


def test_a_share_group_at_its_bound_or_with_expired_locks_says_so():
    share = {"group_type": "share", "in_flight_max": 200}
    before = look(0, {0: (0, 500)}, counts={"delivered": 0}, **share)
    counts = {"delivered": 200, "released": 150, "timed_out": 20, "acknowledged": 30}
    now = look(10, {0: (0, 500)}, in_flight=200, counts=counts, **share)
    assert kinds(before, now)[:3] == ["in_flight_at_limit", "locks_expire", "redelivered"]
    assert diagnose(before, now)[-1].evidence["consumed_per_s"] == 3.0
