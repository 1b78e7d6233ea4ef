"""The reference pages of metrics, errors and headers are what the code has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.documents.commands import ROOT

from headrace.cli import errors_reference, metrics_reference
from headrace.http.metric_table import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("name", "page"), [("metrics", metrics_reference.page), ("errors", errors_reference.page)]
)
def test_the_page_is_current(name: str, page: Callable[[], str]) -> None:
    stored = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert stored == page(), (
        f"{name} were changed: write the page anew with"
        f" `python -m headrace.cli.{name}_reference > docs/reference/{name}.md`"
    )


def test_every_help_text_is_a_sentence_and_every_label_has_a_bound() -> None:
    for row in ROWS.values():
        assert row.help[0].isupper() or row.help[0].isdigit(), row
        assert row.help.endswith("."), row
        assert bool(row.labels) == bool(row.bound), row


def test_every_header_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "headers.md").read_text()
    places = (
        "records/attributes", "records/letters", "broker/shares/dead_letters", "rocketmq/messages",
        "pipeline/jobs/headers", "cli/backlog_probe",
    )  # fmt: skip
    for place in places:
        text = (ROOT / "src" / "headrace" / f"{place}.py").read_text()
        found = re.findall(r'"(headrace-[a-z-]+)"', text)
        assert found, place
        assert [name for name in found if f"`{name}`" not in page] == [], place
