"""Clients that wait for messages of lite topics: how many are remembered."""

from __future__ import annotations

from types import SimpleNamespace

from headrace.broker.shares import lite_waits
from headrace.broker.shares.lite_waits import LiteWaits
from headrace.log.waiters import Waiters


def test_clients_that_no_longer_wait_are_forgotten_while_another_one_waits(monkeypatch):
    monkeypatch.setattr(lite_waits, "CLIENTS_MAX", 50)
    waits = LiteWaits(SimpleNamespace(name="t-0", waiters=Waiters()), lambda: None)
    waiting = waits.waiters(-1)
    waiting.add(waits)
    before = waits.woken(-1)
    for number in range(1_000):
        waits.waiters(number)
    assert len(waits._clients) <= 50
    assert waits.waiters(-1) is waiting
    assert waits.woken(-1) == before
