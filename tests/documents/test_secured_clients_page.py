"""The table of docs/SECURITY.md says which clients the tests have enter by which way."""

from __future__ import annotations

from tests.documents.commands import ROOT
from tests.integration.test_secured_clients import CLIENTS, WAYS

PAGE = (ROOT / "docs" / "SECURITY.md").read_text()


def test_the_page_says_which_client_enters_in_which_way():
    rows = [["client", *WAYS], ["---"] * (1 + len(WAYS))]
    rows += [[client, *["tested"] * len(WAYS)] for client in CLIENTS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert table in PAGE
