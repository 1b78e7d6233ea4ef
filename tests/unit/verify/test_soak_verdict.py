"""What a soak calls growth: leaks, not warm-ups, noise, or machines that become slow."""

from __future__ import annotations

import pytest

from headrace_verify.rng import seeded
from headrace_verify.soak.leftovers import Ages
from headrace_verify.soak.probe import NO_CONTROL, Round
from headrace_verify.soak.run import with_latencies
from headrace_verify.soak.samples import Process, Sample, Shared
from headrace_verify.soak.trend import POINTS_MAX, trend
from headrace_verify.soak.verdict import (
    LEFT_S_MAX,
    MIB,
    PEER_POOLS,
    RSS_BYTES_MAX,
    judge,
    judge_return,
)

EVERY_S = 15.0
COUNT = 120


NAMES = ("", "another")


def sample(number: int, **figures) -> Sample:
    """One of a process whose figures are given, beside one that does not change."""
    held = Process(
        rss_bytes=60 * MIB,
        sockets=50,
        files=30,
        threads=10,
        cpu_s=number * EVERY_S * 0.2,
        tasks=7,
        connections=45,
    )
    other = held._replace(tasks=None, connections=None)
    own = {name: figures.pop(name) for name in Process._fields if name in figures}
    processes = dict(zip(NAMES, (held._replace(**own), other), strict=True))
    plain = Sample(
        number * EVERY_S,
        processes,
        log_bytes={"endless": number * MIB, "bounded": 2 * MIB},
        folder_bytes=(70 + number) * MIB,
        produce_p50_ms=1.5,
        produce_p99_ms=9.0,
        fetch_p50_ms=0.5,
        fetch_p99_ms=2.0,
        control_p50_ms=1.3,
    )
    return plain._replace(**figures)


def verdict(change) -> list[str]:
    """Of half an hour in which `change(share of the run)` gives some figures."""
    samples = [sample(number, **change(number / COUNT)) for number in range(COUNT)]
    return judge(samples, "endless", {"bounded": 3 * MIB})[0]


def test_a_steady_broker_passes():
    assert verdict(lambda _: {}) == []


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("memory", lambda part: {"rss_bytes": int((60 + 30 * part) * MIB)}),
        ("memory", lambda part: {"rss_bytes": RSS_BYTES_MAX + 1 if part == 0.5 else 60 * MIB}),
        ("sockets", lambda part: {"sockets": int(50 + 40 * part)}),
        ("open files", lambda part: {"files": int(30 + 60 * part)}),
        ("threads", lambda part: {"threads": int(10 + 12 * part)}),
        ("tasks", lambda part: {"tasks": int(7 + 60 * part)}),
        ("disks", lambda part: {"folder_bytes": int((70 + 600 * part) * MIB), "log_bytes": {}}),
        ("logs that are bounded", lambda part: {"log_bytes": {"other": int(60 * part * MIB)}}),
        ("retention", lambda part: {"log_bytes": {"bounded": 4 * MIB}}),
        ("produce_p50_ms", lambda part: {"produce_p50_ms": 1 + 120 * part}),
        ("fetch_p50_ms", lambda part: {"fetch_p50_ms": 1 + 120 * part}),
        ("too few measurements", lambda part: {"fetch_p50_ms": None}),
        ("share of a core", lambda part: {"cpu_s": 1800 * part * part * 0.5}),
    ],
)
def test_growth_is_found(word, change):
    assert [what for what in verdict(change) if word in what]


SHARED = Shared(40, 8, 20.0, 4, 20.0, 200, 50)


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("ledgers:", lambda part: {"ledgers": int(40 + 500 * part)}),
        ("nodes in ZooKeeper", lambda part: {"znodes": int(200 + 2_000 * part)}),
        ("watches", lambda part: {"watches": int(50 + 500 * part)}),
        ("a ledger that no chain names", lambda part: {"orphan_s": LEFT_S_MAX * 1.5 * part}),
        ("a fact of a deleted", lambda part: {"stale_s": LEFT_S_MAX * 1.5 * part}),
    ],
)
def test_leftovers_in_a_cluster_are_found_though_some_samples_lack_them(word, change):
    def shared(part):
        found = SHARED._replace(**change(part)) if int(part * COUNT) % 3 == 0 else None
        return {"shared": found, "copies": 1}

    (wrong,) = verdict(shared)
    assert word in wrong


def test_of_several_processes_the_one_that_grows_is_named():
    (wrong,) = verdict(lambda part: {"threads": int(10 + 12 * part)})
    assert wrong.startswith("threads: ")
    samples = [sample(number, tasks=7) for number in range(COUNT)]
    for number, one in enumerate(samples):
        one.processes["another"] = one.processes["another"]._replace(sockets=50 + number)
    (wrong,) = judge(samples, "endless", {})[0]
    assert wrong.startswith("sockets, another: ")


def test_memory_that_a_broker_would_give_up_is_no_leak():
    assert not verdict(
        lambda part: {"rss_bytes": int((60 + 60 * part) * MIB), "cache_bytes": int(60 * part * MIB)}
    )


def test_the_age_of_what_is_left_counts_from_the_look_that_first_saw_it():
    ages = Ages()
    assert ages.oldest_s(1.0, []) == 0
    assert ages.oldest_s(2.0, ["a"]) == 0
    assert ages.oldest_s(5.0, ["b", "a"]) == 3
    assert ages.oldest_s(9.0, ["b"]) == 4
    assert ages.oldest_s(10.0, ["a"]) == 0


def test_each_write_ahead_log_may_have_its_files():
    def folder(part):
        return {"folder_bytes": int((70 + 400 * part) * MIB), "log_bytes": {}}

    assert "disks" in verdict(folder)[0]
    samples = [sample(number, **folder(number / COUNT)) for number in range(COUNT)]
    for one in samples:
        one.processes["another"] = one.processes[""]
    assert judge(samples, "endless", {})[0] == []


def test_a_third_of_wild_figures_changes_nothing():
    rng = seeded("wild")

    def wild(_part):
        return {"rss_bytes": 200 * MIB, "tasks": 300} if rng.random() < 0.3 else {}

    assert verdict(wild) == []


def test_memory_taken_once_is_no_leak():
    assert verdict(lambda part: {"rss_bytes": (60 if part < 0.4 else 80) * MIB}) == []


def test_a_machine_that_becomes_slow_is_not_the_brokers_fault():
    def slow(part):
        return {"produce_p50_ms": 2 + 100 * part, "control_p50_ms": 1.3 + 60 * part}

    assert verdict(slow) == []


def test_figures_that_the_machine_cannot_measure_are_not_judged():
    nothing = dict.fromkeys(("rss_bytes", "sockets", "files", "threads"))
    assert verdict(lambda _part: nothing) == []


def test_resources_that_are_not_returned_are_named():
    before = sample(0, sockets=5, connections=0, tasks=6)
    assert judge_return(before, before) == []
    to_the_other = sample(1, sockets=5 + 2 * PEER_POOLS, connections=PEER_POOLS, tasks=6)
    assert judge_return(before, to_the_other) == []
    wrong = judge_return(
        before, sample(1, rss_bytes=200 * MIB, sockets=16, connections=4, tasks=20, threads=40)
    )
    assert [what.partition(":")[0] for what in wrong] == [
        "memory, bytes",
        "sockets",
        "threads",
        "tasks",
        "connections",
    ]


@pytest.mark.parametrize("count", [6, POINTS_MAX, POINTS_MAX * 3 + 7])
def test_a_straight_line_has_its_slope(count):
    found = trend([(at * 2.0, 10 + at * 0.5) for at in range(count)])
    assert found.per_hour == pytest.approx(0.25 * 3600)
    assert found.grown == pytest.approx(0.25 * (count - 1) * 2)


def test_a_short_run_judges_latency_coarsely_and_none_not_at_all():
    shaky = [sample(number, at_s=number * 0.3) for number in range(20)]
    shaky[-7:] = [sample(one.at_s / EVERY_S, produce_p50_ms=90.0, cpu_s=None) for one in shaky[-7:]]
    assert judge(shaky, "endless", {})[0] == []
    slow = [one._replace(fetch_p50_ms=1 + number * 50) for number, one in enumerate(shaky)]
    assert len(judge(slow, "endless", {})[0]) == 1
    assert judge([], "endless", {})[0] == ["no samples after the warm-up"]


def test_few_points_have_no_trend():
    assert trend([(at, 1.0) for at in range(5)]) is None


def test_a_look_gets_the_latencies_since_the_one_before():
    rounds = [Round(0, 1000 * (at + 1), 500, 2000 if at == 3 else NO_CONTROL) for at in range(9)]
    found = with_latencies(sample(1), rounds)
    assert (found.produce_p50_ms, found.produce_p99_ms) == (5.0, 9.0)
    assert (found.fetch_p50_ms, found.control_p50_ms) == (0.5, 2.0)
