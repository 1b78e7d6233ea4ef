"""The page says what was measured, with which promise, and which system was absent."""

from __future__ import annotations

import pytest

from headrace_bench.growth import SERIES
from headrace_bench.hdr import HdrHistogram
from headrace_bench.loads import FIGURES, LOADS
from headrace_bench.side_page import SideBook, markdown

BEGIN, END = "<!-- beside: begin -->", "<!-- beside: end -->"

PRODUCE = next(load for load in LOADS if load.kind == "produce")
LATENCY = next(load for load in LOADS if load.kind == "latency")


def run(rate):
    return dict.fromkeys(FIGURES, 1.0) | {"records_per_s": rate}


def timed(*milliseconds):
    values = [value * 1_000_000 for value in milliseconds]
    histogram = HdrHistogram(values).as_json()
    names = ("p50", "p90", "p99", "p99.9", "max")
    return {**dict.fromkeys(names, float(max(milliseconds))), "histogram_ns": histogram}


def system(title, **sides):
    about = {
        policy: {"words": words, "ready_s": 0.5, "idle_mb": 50.0} for policy, words in sides.items()
    }
    return {"title": title, "tool": "a tool", "version": "1.0", "missing": "", "sides": about}


ABOUT = {
    "date": "2026-01-02",
    "commit": "abc",
    "machine": {"cores": 2, "disk": "ext4", "sync_us": 70, "load": "0.1"},
    "failures": [],
}
RESULTS = {
    "systems": {
        "headrace": system("Headrace", synced="default", unsynced="flush.ms=1000"),
        "redis": system("Redis", synced="appendfsync always"),
        "nats": {
            "title": "NATS",
            "tool": "t",
            "missing": "no nats-server",
            "sides": {},
        },
    },
    "loads": {
        PRODUCE.name: ABOUT
        | {
            "rounds": {
                "headrace/synced": [run(100.0), run(300.0), run(200.0)],
                "headrace/unsynced": [run(900.0)],
                "redis/synced": [run(250.0)],
            },
            "failures": ["redis/unsynced: it ended\nand more"],
        },
        LATENCY.name: ABOUT
        | {
            "rounds": {
                "headrace/synced": [timed(1), timed(2, 3)],
                "redis/synced": [{"p50": 5.0, "p99": 9.0}, {"p50": 7.0, "p99": 9.0}],
            }
        },
    },
    "growth": {
        SERIES[0].name: ABOUT
        | {"rounds": {"headrace/unsynced": {"1": [run(1.0) | {"mb_per_s": 80.0}], "10": []}}}
    },
}


def test_a_figure_is_the_median_with_its_spread_and_its_promise():
    assert "| synced | Headrace, default | 200 (100-300) |" in markdown(RESULTS)


def test_equal_promises_stand_together_the_quickest_first():
    page = markdown(RESULTS)
    rows = [line for line in page.splitlines() if line.startswith(("| synced", "| unsynced"))][:3]
    assert [row.split("|")[2].strip() for row in rows] == [
        "Redis, appendfsync always",
        "Headrace, default",
        "Headrace, flush.ms=1000",
    ]


def test_percentiles_are_of_all_rounds_messages():
    row = next(
        line for line in markdown(RESULTS).splitlines() if " ms" not in line and "2.0" in line
    )
    assert row.startswith("| synced | Headrace, default | 2.00 (1.00-3.00) ")


def test_a_percentile_reported_by_a_tool_is_marked_as_not_corrected():
    page = markdown(RESULTS)
    assert "| synced | Redis, appendfsync always | 6.00* (5.00-7.00) | - | 9.00*" in page
    assert "`*`: reported by the tool itself, not corrected for coordinated omission." in page


def test_a_series_has_a_row_for_each_value():
    page = markdown(RESULTS)
    assert "| partitions | Headrace, flush.ms=1000: MB/s |" in page
    assert "| 1 | 80.0 | 1.00 | 1 |" in page
    assert "| 1,000 | - | - | - |" in page


def test_missing_systems_are_named_with_the_command_that_installs_them():
    page = markdown(RESULTS)
    assert "| NATS | not run: no nats-server; `headrace bench --install nats` |" in page
    assert "- failed: redis/unsynced: it ended" in page


def test_only_what_is_between_the_markers_is_written_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    pytest.importorskip("matplotlib")
    book = SideBook(tmp_path / "results", page)
    book.save(RESULTS)
    book.publish(book.load())
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    for chart in ("throughput.svg", "latency.svg", "growth.svg"):
        assert f"(results/charts/{chart})" in text
        assert (tmp_path / "results" / "charts" / chart).read_text().startswith("<?xml")
    assert book.load() == RESULTS
