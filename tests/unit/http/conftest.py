"""What looks through many records ends after a time of its own: here it has all the time it needs,
so that what it finds does not depend on the machine. Tests of such a limit set it."""

from __future__ import annotations

import pytest

from headrace.broker.services import hot_keys, message_search, past_group_offsets, trace
from headrace.broker.shares import journal_pages
from headrace.http import search, traces

CALL_MS = search.TIME_MS_MAX
STEP_MS = CALL_MS - 1_000


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    for module in (search, traces):
        monkeypatch.setattr(module, "TIME_MS", CALL_MS)
    for module in (message_search, trace):
        monkeypatch.setattr(module, "STEP_MS", STEP_MS)
    for module in (hot_keys, past_group_offsets):
        monkeypatch.setattr(module, "TIME_S_MAX", CALL_MS / 1_000)
    monkeypatch.setattr(journal_pages, "TIME_S", CALL_MS / 1_000)
