"""Dashboards and alert rules: what they name exists, and Prometheus can read it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.documents.commands import ROOT
from tests.prometheus import tool

from headrace.cli.alert_rules import RULES, RUNBOOK, anchor, rules_file
from headrace.cli.dashboard_panels import DASHBOARDS
from headrace.cli.dashboards import dashboard_json
from headrace.cli.main import cli
from headrace.cli.metrics_reference import shown_names
from headrace.http.metric_table import ROWS
from headrace_verify.blackbox.languages.rocketmq import NotInstalled, find_python

NAMES = {name for row in ROWS.values() for name in shown_names(row)} | {"up"}
LABELS = {label for row in ROWS.values() for label in row.labels}
METRIC = re.compile(r"\b(?:headrace|process)_[a-z_]+")
EXPRESSIONS = {
    **{
        f"{board.name}: {panel.title} {number}": expression
        for board in DASHBOARDS
        for panel in board.panels
        for number, (expression, _legend) in enumerate(panel.queries)
    },
    **{rule.name: rule.expression for rule in RULES},
}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(where: str) -> None:
    expression = EXPRESSIONS[where]
    named = set(METRIC.findall(expression))
    assert named or "up{" in expression
    assert named <= NAMES
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        assert set(labels.replace(" ", "").split(",")) <= LABELS | {"le", "instance"}


def test_variables_and_legends_name_labels_that_exist() -> None:
    for board in DASHBOARDS:
        for query in board.variables.values():
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
            assert metric in NAMES
            assert label in LABELS | {"instance"}
        for panel in board.panels:
            for expression, legend in panel.queries:
                assert set(re.findall(r"{{(\w+)}}", legend)) <= LABELS | {"instance"}
                used = set(re.findall(r"\$(\w+)", expression))
                assert used <= board.variables.keys()


def test_every_alert_has_a_section_in_the_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    sections = {heading.lower() for heading in headings} - {"evidence"}
    assert sections == {anchor(rule) for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_promtool_reads_all_expressions(tmp_path) -> None:
    promtool = tool("promtool")
    alerts = tmp_path / "alerts.yml"
    alerts.write_text(rules_file())
    panels = tmp_path / "panels.yml"
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$\w+", ".*", expression)}
        for number, expression in enumerate(EXPRESSIONS.values())
    ]
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(alerts), str(panels)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_an_alert_names_a_duration_as_people_do_and_its_page_as_told(tmp_path) -> None:
    promtool = tool("promtool")
    page = "https://docs.example/RUNBOOK.html"
    (tmp_path / "alerts.yml").write_text(rules_file(page))
    labels = {"group": "billing", "topic": "orders"}
    expected = {
        "exp_labels": {**labels, "severity": "warning"},
        "exp_annotations": {
            "summary": "Group billing is 16m 40s behind in orders.",
            "runbook_url": f"{page}#headracegrouplag",
        },
    }
    series = {
        "series": 'headrace_group_lag_seconds{group="billing",topic="orders"}',
        "values": "1000.0000000001x30",
    }
    alert = {"eval_time": "20m", "alertname": "HeadraceGroupLag", "exp_alerts": [expected]}
    test = {"interval": "1m", "input_series": [series], "alert_rule_test": [alert]}
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"rule_files": ["alerts.yml"], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(cases)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    for board in DASHBOARDS:
        found = json.loads(dashboard_json(board))
        assert found["schemaVersion"] == 41
        taken = set()
        for panel in found["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells
        assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])


READ_AND_WRITTEN = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
boards = [Dashboard.from_json(board) for board in json.load(sys.stdin)]
print(JSONEncoder().encode(boards))
"""
OF_EXPORTS = {"__inputs", "__requires"}
"""Fields of a dashboard's file, beside those of the dashboard."""


def test_grafanas_schema_has_every_field_of_the_dashboards() -> None:
    """Grafana's own library reads the fields that its schema has, and writes what it has read."""
    try:
        python = find_python((Path(__file__).parent / "grafana.lock").read_text())
    except NotInstalled as error:
        pytest.skip(str(error))
    boards = [json.loads(dashboard_json(board)) for board in DASHBOARDS]
    done = subprocess.run(
        [python, "-c", READ_AND_WRITTEN],
        input=json.dumps(boards),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for board, known in zip(boards, json.loads(done.stdout), strict=True):
        for name in OF_EXPORTS:
            del board[name]
        assert_has(known, board, board["uid"])


def assert_has(known: Any, expected: Any, place: str) -> None:
    """Defaults may have been added, nothing may be missing."""
    if isinstance(expected, dict):
        assert expected.keys() <= known.keys(), place
        for name, value in expected.items():
            assert_has(known[name], value, f"{place}.{name}")
    elif isinstance(expected, list):
        for number, (one, value) in enumerate(zip(known, expected, strict=True)):
            assert_has(one, value, f"{place}[{number}]")
    else:
        assert known == expected, place


def test_an_export_overwrites_nothing_without_force(tmp_path) -> None:
    runner, folder = CliRunner(), tmp_path / "grafana"
    done = runner.invoke(cli, ["dashboards", "export", str(folder)])
    assert done.exit_code == 0, done.output
    names = {path.name for path in folder.iterdir()}
    assert names == {"headrace-alerts.yml", *(f"headrace-{one.name}.json" for one in DASHBOARDS)}
    (folder / "headrace-topic.json").write_text("mine")
    done = runner.invoke(cli, ["dashboards", "export", str(folder)])
    assert done.exit_code != 0
    assert (folder / "headrace-topic.json").read_text() == "mine"
    assert runner.invoke(cli, ["dashboards", "export", "--force", str(folder)]).exit_code == 0
    assert json.loads((folder / "headrace-topic.json").read_text())["uid"] == "headrace-topic"


def test_the_alert_of_a_certificate_names_the_server_name_that_it_is_for():
    (rule,) = (one for one in RULES if one.name == "HeadraceCertificateExpires")
    assert "$labels.listener" in rule.summary
    assert "$labels.server_name" in rule.summary
