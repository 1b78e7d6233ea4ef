"""What `headrace group history` prints."""

from __future__ import annotations

from types import SimpleNamespace

from click.testing import CliRunner

from headrace.cli import group_diagnosis
from headrace.cli.main import cli


def test_a_lag_is_shown_in_records_and_in_time(monkeypatch) -> None:
    points = [
        {"at_ms": 15_000, "lag_records": 9, "lag_ms": None, "is_partial": False},
        {"at_ms": 30_000, "lag_records": 7, "lag_ms": 61_500, "is_partial": True},
        {"at_ms": 45_000, "lag_records": 0, "lag_ms": 0, "is_partial": False},
    ]
    web = SimpleNamespace(ask=lambda *_: {"points": points, "trend": None})
    monkeypatch.setattr(group_diagnosis, "Web", lambda _session: web)
    ran = CliRunner().invoke(cli, ["group", "history", "billing"])
    assert ran.exit_code == 0, ran.output
    rows = [line.split(maxsplit=2)[1:] for line in ran.stdout.splitlines()[-3:]]
    assert rows == [["9", "-"], [">=7", ">=61.5 s"], ["0", "0.0 s"]]
