"""`headrace dashboards`: Grafana dashboards and Prometheus alert rules for a broker's metrics.

Invariants: made from `dashboard_panels` and `alert_rules`, which name metrics of the table alone; a
test checks that, and lets Prometheus read the rules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.alert_rules import RUNBOOK, rules_file
from headrace.cli.dashboard_panels import DASHBOARDS
from headrace.cli.failures import CONFLICT, CommandFailed
from headrace.cli.output import say
from headrace.cli.parameters import CommandGroup

if TYPE_CHECKING:
    from headrace.cli.dashboard_panels import Dashboard, Panel

RULES = "headrace-alerts.yml"
_WIDTH, _STAT_WIDTH, _HEIGHT, _STAT_HEIGHT = 12, 4, 8, 4
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@click.group(cls=CommandGroup)
def dashboards() -> None:
    """Export Grafana dashboards and Prometheus alert rules."""


@dashboards.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite files of an earlier export.")
@click.option(
    "--runbook",
    metavar="URL",
    default=RUNBOOK,
    show_default=True,
    help="Where the runbook's page is, for the links of alerts.",
)
def export(folder: Path, force: bool, runbook: str) -> None:
    """Write dashboards (JSON) and alert rules (YAML) to DIR.

    Import the dashboards in Grafana, or provision DIR; add the rules to `rule_files` of Prometheus.
    """
    files = {f"headrace-{one.name}.json": dashboard_json(one) for one in DASHBOARDS}
    files[RULES] = rules_file(runbook)
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise CommandFailed(
            f"{folder / there[0]} exists; nothing was written",
            "Choose another folder, or overwrite with --force",
            CONFLICT,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
        say(str(folder / name))


def dashboard_json(dashboard: Dashboard) -> str:
    """A dashboard in Grafana's format (schema version 41), with a data source to choose."""
    found: dict[str, Any] = {
        "__inputs": [],
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        ],
        "uid": f"headrace-{dashboard.name}",
        "title": f"Headrace: {dashboard.title}",
        "tags": ["headrace"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables.items())]},
        "panels": _placed(dashboard.panels),
    }
    return json.dumps(found, indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource",
            "query": "prometheus", "current": {}}  # fmt: skip


def _variable(item: tuple[str, str]) -> dict[str, Any]:
    name, query = item
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """The panels from left to right, single figures first."""
    found: list[dict[str, Any]] = []
    x = y = 0
    row_height = 0
    for number, panel in enumerate(panels, 1):
        width, height = (_STAT_WIDTH, _STAT_HEIGHT) if panel.is_stat else (_WIDTH, _HEIGHT)
        if x + width > 2 * _WIDTH or (row_height and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        found.append(_drawn(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x += width
    return found


def _drawn(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression,
             "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip
