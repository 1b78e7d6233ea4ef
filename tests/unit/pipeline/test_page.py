"""The page of a topic: complete without network, and safe whatever messages contain."""

import re
from html.parser import HTMLParser

import pytest
from tests.unit.pipeline.test_certificate import BODY, PRODUCER

from headrace.pipeline.jobs.certificate import sealed
from headrace.pipeline.jobs.page import stages, write_page

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
