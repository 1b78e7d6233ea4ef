"""A wrong count is said, written down, and decides."""

import io
import json
from time import monotonic_ns

from rich.console import Console

from headrace.pipeline.demo.run import Demo, _summary


def test_only_counts_that_differ_are_problems_and_the_summary_names_them(tmp_path):
    demo = Demo("h:1", tmp_path, "flights", "flights-delays")
    demo.note("published", 1_000, monotonic_ns(), "acks=all")
    demo.expect("consumed", 1_000, 1_000)
    assert demo.problems == []
    demo.expect("archived", 999, 1_000)
    said = io.StringIO()
    _summary(demo, Console(file=said, width=100))
    assert "archived: 999, expected 1,000" in said.getvalue()
    assert "no gap" not in said.getvalue()
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["is_exact"] is False
    assert written["steps"][0]["record_count"] == 1_000
