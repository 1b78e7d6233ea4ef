"""The reference page of settings is the one that their table gives."""

from __future__ import annotations

from tests.documents.commands import ROOT

from headrace.cli.settings_reference import page


def test_the_page_of_settings_is_current() -> None:
    stored = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert stored == page(), (
        "settings were changed: write the page anew with"
        " `python -m headrace.cli.settings_reference > docs/reference/settings.md`"
    )
