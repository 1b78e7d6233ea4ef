"""`headrace task` shows what brokers answer, also those of earlier versions."""

from __future__ import annotations

from types import SimpleNamespace

from click.testing import CliRunner

from headrace.cli import task

KNOWN = {
    "id": "1f0c3a", "state": "done", "asked": {"topic": "orders"}, "started_ms": 0, "ended_ms": 5,
    "progress": {}, "result_count": 3,
}  # fmt: skip


def test_tasks_of_a_broker_that_does_not_say_its_number_are_listed(monkeypatch):
    def ask(_method, path):
        return {path.rpartition("/")[2]: [KNOWN] if path.endswith("searches") else []}

    monkeypatch.setattr(task, "Web", lambda _session: SimpleNamespace(ask=ask))
    listed = CliRunner().invoke(task.list_, [], obj=SimpleNamespace())
    assert listed.exception is None, listed.output
    assert "1f0c3a" in listed.output
