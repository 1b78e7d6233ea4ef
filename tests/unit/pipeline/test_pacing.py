"""When a continuous archive begins a round."""

from headrace.pipeline.jobs.pacing import UNKNOWN_RECORD_BYTES, Freshness, RoundPacer


def pacer(bytes_min=1_000, wait_ms_max=60_000, records_max=500):
    return RoundPacer(bytes_min=bytes_min, wait_ms_max=wait_ms_max, records_max=records_max)


def test_a_small_backlog_waits_its_time():
    rounds = pacer()
    assert not rounds.is_due(1, 10, now_ms=5_000)
    assert not rounds.is_due(50, 10, now_ms=64_999)
    assert rounds.is_due(50, 10, now_ms=65_000)


def test_the_time_begins_with_the_first_record_after_a_round():
    rounds = pacer()
    assert not rounds.is_due(0, 10, now_ms=0)
    assert not rounds.is_due(1, 10, now_ms=100_000)
    assert rounds.is_due(1, 10, now_ms=160_000)
    rounds.begun()
    assert not rounds.is_due(1, 10, now_ms=160_001)
    assert not rounds.is_due(0, 10, now_ms=200_000)  # another writer archived it
    assert not rounds.is_due(1, 10, now_ms=230_000)
    assert rounds.is_due(1, 10, now_ms=290_000)


def test_enough_bytes_or_a_full_round_do_not_wait():
    assert not pacer().is_due(99, 10, now_ms=0)
    assert pacer().is_due(100, 10, now_ms=0)
    assert pacer().is_due(500, 0.1, now_ms=0)
    assert pacer().is_due(1_000 // UNKNOWN_RECORD_BYTES, None, now_ms=0)


def test_no_least_size_means_a_round_for_whatever_is_there():
    assert pacer(bytes_min=0).is_due(1, 10, now_ms=0)
    assert pacer(wait_ms_max=0).is_due(1, 10, now_ms=0)


def test_a_quiet_topic_waits_less_than_a_busy_one():
    def pacer():
        return RoundPacer(
            bytes_min=10_000, wait_ms_max=20_000, records_max=10**6,
            quiet_wait_ms=2_000, quiet_bytes_max=1_000,
        )  # fmt: skip

    quiet, busy = pacer(), pacer()
    assert [quiet.is_due(10, 100, now_ms) for now_ms in (0, 1_999, 2_000)] == [False, False, True]
    assert [busy.is_due(11, 100, now_ms) for now_ms in (0, 2_000, 19_999)] == [False] * 3
    assert busy.is_due(11, 100, 20_000)


def test_a_table_is_complete_until_the_last_look_whose_ends_it_has_reached():
    fresh = Freshness()

    def ends(zero, one):
        return {"t": {"0": zero, "1": one}}

    assert fresh.reached(ends(0, 0)) is None
    fresh.looked(ends(5, 0), 1_000)
    fresh.looked(ends(5, 2), 2_000)
    fresh.looked(ends(5, 2), 3_000)  # the same ends: complete until then, too
    assert fresh.reached(ends(4, 2)) is None
    assert fresh.reached(ends(5, 1)) == 1_000
    fresh.looked(ends(9, 9), 4_000)
    assert fresh.reached(ends(6, 3)) == 3_000
    assert fresh.reached(ends(9, 9)) == 4_000
    assert fresh.reached(ends(9, 9)) == 4_000
