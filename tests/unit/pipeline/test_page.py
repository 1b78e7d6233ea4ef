"""The page of a topic: complete without network, and safe whatever messages contain."""

import math
import re
from html.parser import HTMLParser

import pytest
from tests.unit.pipeline.test_certificate import BODY, PRODUCER

from headrace.pipeline.jobs.certificate import sealed
from headrace.pipeline.jobs.page import heat, outline, stages, write_page

EVIL = "<script>alert('x')</script>&\"'"
BACKLOG = {
    "group": EVIL, "topic": "orders", "lag": 5, "bucket_ms": 60_000,
    "arrivals": [[1_700_000_000_000, 60, 600], [1_700_000_060_000, 30, 300]],
    "samples": [[1_700_000_000_000, 9], [1_700_000_060_000, 5]],
    "hot_keys": [{"key": EVIL, "records": 4, "share": 0.8}],
    "forecast": {"arrival_per_s": 1.0, "drain_per_s": 2.0, "empty_at_ms": 1_700_000_070_000,
                 "verdict": "empty"},
    "advice": [EVIL],
}  # fmt: skip
TRACE = {
    "topic": "orders",
    "latencies": [
        {"event": "acknowledged", "topic": "orders", "group": EVIL, "hour_ms": hour * 3_600_000,
         "count": 5, "p50_ms": 3.0, "p95_ms": 40.0, "p99_ms": 90.0, "slowest_ms": 120}
        for hour in (470_000, 470_001)
    ],
    "slow": [{"message": EVIL, "event": "stored", "topic": "t", "group_name": None,
              "latency_ms": 120}],
}  # fmt: skip


class Page(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def page(tmp_path):
    proof = sealed({**BODY, "producers": [PRODUCER | {"producer": EVIL}]})
    paths = write_page(tmp_path, EVIL, proof=proof, backlogs=[BACKLOG], trace=TRACE)
    return paths, paths[0].read_text()


def test_the_page_has_every_chart_and_needs_no_network(page):
    paths, text = page
    assert [path.name for path in paths] == ["index.html", "flow.png", "lag-0.png", "latency.png"]
    for path in paths[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    found = Page(text)
    assert len(found.links) == 3
    assert all(link.startswith("data:image/png;base64,") for link in found.links)
    assert not re.search(r"https?://", text)


def test_text_of_messages_is_shown_and_never_runs(page):
    found = Page(page[1])
    assert "script" not in found.tags
    assert "".join(found.words).count("<script>") >= 6
    assert "empty at 2023-11-14 22:14:30 UTC" in "".join(found.words)


def test_a_stage_that_lost_records_is_smaller():
    lost = {**BODY, "producers": [PRODUCER | {"sent": 12}]}
    assert stages(sealed(lost)) == [
        ("sent", 12), ("stored", 10), ("archived", 10), ("acknowledged: workers", 10),
    ]  # fmt: skip


def test_nothing_is_drawn_where_there_is_nothing(tmp_path):
    none = {**BODY, "producers": [], "archived": None, "groups": []}
    none["stored"] = {number: {**side, "distinct": 0} for number, side in BODY["stored"].items()}
    empty = {"arrivals": [], "samples": [[1_700_000_000_000, 0]], "hot_keys": [], "advice": []}
    paths = write_page(
        tmp_path, "orders", proof=sealed(none), backlogs=[{**BACKLOG, "lag": 0, **empty}],
        trace={**TRACE, "latencies": [], "slow": []},
    )  # fmt: skip
    assert [path.name for path in paths] == ["index.html"]
    found = Page(paths[0].read_text())
    assert "table" not in found.tags
    assert "There are no records." in found.words


@pytest.mark.parametrize("name", ["n" * 249, "$x^{$", "名前"])
def test_names_leave_room_for_the_charts(tmp_path, name, recwarn):
    """matplotlib takes $ for a formula, and warns where a label leaves no room."""
    group = {**BODY["groups"][0], "group": name}
    acknowledged = {**PRODUCER, "acknowledged": {name: 1}}
    proof = sealed({**BODY, "producers": [acknowledged], "groups": [group]})
    latencies = [{**one, "group": name} for one in TRACE["latencies"]]
    write_page(tmp_path, name, proof=proof, trace={**TRACE, "latencies": latencies})
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize("span_s", [0, 1, 10, 400, 16_200, 216_000, 7_000_000, 90_000_000])
def test_any_span_of_time_has_a_few_ticks(tmp_path, span_s, recwarn):
    samples = [[1_700_000_000_000, 9], [1_700_000_000_000 + 1_000 * span_s, 5]]
    write_page(tmp_path, "t", backlogs=[{**BACKLOG, "arrivals": [], "samples": samples}])
    assert [str(one.message) for one in recwarn] == []


def test_times_without_arrivals_are_not_those_of_the_bucket_before():
    arrivals = [[0, 60, 600], [60_000, 30, 300], [600_000, 6, 60]]
    assert outline(arrivals, 60_000) == [
        (0, 1.0), (60_000, 0.5), (120_000, 0.0), (600_000, 0.1), (660_000, 0.0),
    ]  # fmt: skip


def test_hours_without_events_are_neither_fast_nor_slow():
    first, last = TRACE["latencies"][0], {**TRACE["latencies"][0], "group": "other"}
    last["hour_ms"] += 2 * 3_600_000
    names, hours, grid = heat([first, last])
    assert (len(names), len(hours)) == (2, 3)
    assert sorted(math.isnan(cell) for row in grid for cell in row) == [False] * 2 + [True] * 4


def test_of_what_a_group_did_with_several_topics_the_slowest_is_drawn():
    slow = {**TRACE["latencies"][0], "topic": "a", "p95_ms": 9_000.0}
    fast = {**slow, "topic": "b", "p95_ms": 5.0}
    for order in ([slow, fast], [fast, slow]):
        _, _, grid = heat(order)
        assert grid == [[9_000.0]]
