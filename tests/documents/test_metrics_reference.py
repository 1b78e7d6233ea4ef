"""The reference page of metrics is the one that their table gives, and the table is used."""

from __future__ import annotations

from tests.documents.commands import ROOT

from headrace.cli.metrics_reference import page
from headrace.http.metric_table import ROWS


def test_the_page_of_metrics_is_current() -> None:
    stored = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert stored == page(), (
        "metrics were changed: write the page anew with"
        " `python -m headrace.cli.metrics_reference > docs/reference/metrics.md`"
    )


def test_every_help_text_is_a_sentence_and_every_label_has_a_bound() -> None:
    for row in ROWS.values():
        assert row.help[0].isupper() or row.help[0].isdigit(), row
        assert row.help.endswith("."), row
        assert bool(row.labels) == bool(row.bound), row
